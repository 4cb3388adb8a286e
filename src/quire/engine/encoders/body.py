"""The model and the score function of each encoder family, and their names in the files."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from quire.core.encoding import EncoderKind
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.checkpoint.model_directory import ModelDirectory
from quire.engine.encoders.config import BertShape, EncoderShape
from quire.engine.encoders.decoder_body import DecoderBody
from quire.engine.encoders.modernbert import ModernBert
from quire.engine.encoders.modernbert_config import ModernBertShape
from quire.engine.encoders.modules import EncoderModule
from quire.engine.encoders.scores import (
    Score,
    bert_score,
    last_token_score,
    modernbert_score,
    roberta_score,
    word_score,
)
from quire.engine.encoders.transformer import Transformer
from quire.engine.layers.parameters import Parameters
from quire.engine.models.qwen3 import read_qwen3
from quire.engine.weights import Checkpoint


class Body(Protocol):
    """Tokens, their types and which of them are not padding [B, L], to hidden states [B, L, H]."""

    def __call__(self, tokens_BL: Tensor, types_BL: Tensor, visible_BL: Tensor) -> Tensor: ...


def make_body(
    parameters: Parameters,
    shape: EncoderShape,
    kind: EncoderKind,
    reader: ConfigReader,
    directory: ModelDirectory,
    modules: list[EncoderModule],
    checkpoint: Checkpoint,
) -> tuple[Body, Score | None]:
    """The model, and the score of a cross-encoder; their weights are loaded later.

    Checkpoints of a model without head omit the first part of every tensor name.

    Raises:
        ModelError: a configuration or tokenizer that cannot be served.
    """
    scores = kind == "cross_encoder"
    if isinstance(shape.body, BertShape):
        named = f"{shape.family}."
        prefix = named if checkpoint.has_any(f"{named}embeddings.") else ""
        body = Transformer(parameters, prefix, shape.body)
        make_score = bert_score if shape.family == "bert" else roberta_score
        return body, make_score(parameters, shape.body) if scores else None
    if isinstance(shape.body, ModernBertShape):
        prefix = "model." if checkpoint.has_any("model.embeddings.") else ""
        modern = ModernBert(parameters, prefix, shape.body)
        return modern, modernbert_score(parameters, shape.body) if scores else None
    prefix = "model" if checkpoint.has_any("model.embed_tokens.") else ""
    has_words = scores and shape.head == "words"
    decoder = DecoderBody(parameters, prefix, read_qwen3(reader), has_output=has_words)
    if not scores:
        return decoder, None
    if has_words:
        return decoder, word_score(decoder.decoder, directory, modules)
    return decoder, last_token_score(parameters, shape.hidden_size)
