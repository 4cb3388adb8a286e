"""A cross-encoder's scores from hidden states: one for each pair.

Scores are from 0 to 1, unless the directory asks for raw scores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import tokenizers
import torch
from torch import Tensor
from torch.nn import functional

from quire.core.errors import UnsupportedModel
from quire.engine.checkpoint.config_accounting import account
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.checkpoint.model_directory import MAX_JSON_BYTES, ModelDirectory
from quire.engine.encoders.config import BertShape
from quire.engine.encoders.heads import last_token, pooled
from quire.engine.encoders.known_keys import LOGIT_SCORE
from quire.engine.encoders.modernbert_config import ModernBertShape
from quire.engine.encoders.modules import EncoderModule
from quire.engine.encoders.pair_template import NO, YES
from quire.engine.encoders.transformer import DenseLayer, activation_function
from quire.engine.layers.norm import LayerNorm
from quire.engine.layers.parameters import Parameters
from quire.engine.models.decoder import Decoder

logger = logging.getLogger(__name__)

Score = Callable[[Tensor, Tensor], Tensor]
"""Hidden states [B, L, H] and which of them are not padding [B, L], to one score each [B, 1]."""


class ScoreHead:
    """``score``, followed by a sigmoid if ``activate``."""

    dimensions = 1

    def __init__(self, score: Score, activate: bool) -> None:
        self._score = score
        self._activate = activate

    def __call__(self, hidden_BLH: Tensor, visible_BL: Tensor) -> Tensor:
        score_B1 = self._score(hidden_BLH, visible_BL)
        return torch.sigmoid(score_B1) if self._activate else score_B1


def bert_score(parameters: Parameters, shape: BertShape) -> Score:
    """Pooler and classifier of BERT."""
    pooler = DenseLayer(parameters, "bert.pooler.dense", shape.hidden_size, shape.hidden_size)
    classifier = DenseLayer(parameters, "classifier", shape.hidden_size, 1)
    return lambda hidden_BLH, visible_BL: classifier(torch.tanh(pooler(hidden_BLH[:, 0])))


def roberta_score(parameters: Parameters, shape: BertShape) -> Score:
    """The classification head of RoBERTa and MPNet."""
    dense = DenseLayer(parameters, "classifier.dense", shape.hidden_size, shape.hidden_size)
    out = DenseLayer(parameters, "classifier.out_proj", shape.hidden_size, 1)
    return lambda hidden_BLH, visible_BL: out(torch.tanh(dense(hidden_BLH[:, 0])))


def modernbert_score(parameters: Parameters, shape: ModernBertShape) -> Score:
    """The classification head of ModernBERT."""
    size = shape.hidden_size
    dense = DenseLayer(parameters, "head.dense", size, size, bias=shape.classifier_bias)
    norm = LayerNorm(parameters, "head.norm", size, shape.norm_eps, bias=shape.norm_bias)
    classifier = DenseLayer(parameters, "classifier", size, 1)
    activation = activation_function(shape.classifier_activation)
    mode = "mean_tokens" if shape.mean_pooled else "cls_token"

    def score(hidden_BLH: Tensor, visible_BL: Tensor) -> Tensor:
        return classifier(norm(activation(dense(pooled(mode, hidden_BLH, visible_BL)))))

    return score


def last_token_score(parameters: Parameters, hidden_size: int) -> Score:
    """The head of a decoder with one class."""
    head = DenseLayer(parameters, "score", hidden_size, 1, bias=False)
    return lambda hidden_BLH, visible_BL: head(last_token(hidden_BLH, visible_BL))


def word_score(decoder: Decoder, directory: ModelDirectory, modules: list[EncoderModule]) -> Score:
    """The difference of a decoder's next-token logits for yes and no.

    Raises:
        UnsupportedModel: the tokenizer has no such tokens, or the modules name others.
    """
    text = directory.read_text("tokenizer.json", MAX_JSON_BYTES)
    tokenizer = tokenizers.Tokenizer.from_str(text)
    yes, no = tokenizer.token_to_id(YES), tokenizer.token_to_id(NO)
    if yes is None or no is None:
        raise UnsupportedModel(
            f"{directory.path} is a decoder without the tokens {YES!r} and {NO!r}: served as "
            "cross-encoders are decoders that answer as Qwen3-Reranker does; for embeddings it "
            "needs a modules.json with Pooling"
        )
    for module in modules:
        if module.kind == "LogitScore":
            _check_tokens(ModelDirectory(directory.path / module.path), yes, no)

    def score(hidden_BLH: Tensor, visible_BL: Tensor) -> Tensor:
        words_2H = decoder.output_VH[[yes, no]]
        logits_B2 = functional.linear(last_token(hidden_BLH, visible_BL), words_2H).float()
        return logits_B2[:, :1] - logits_B2[:, 1:]

    return score


def _check_tokens(directory: ModelDirectory, yes: int, no: int) -> None:
    reader = ConfigReader(directory.read_json("config.json"), str(directory.path))
    found = (reader.raw("true_token_id"), reader.raw("false_token_id"))
    if found != (yes, no):
        raise UnsupportedModel(
            f"{reader.where} compares the tokens {str(found)[:80]}; served is Qwen3-Reranker's "
            f"prompt, which is answered by {YES!r} ({yes}) or {NO!r} ({no})"
        )
    for warning in account(reader, LOGIT_SCORE):
        logger.warning("%s", warning)


def is_activated(directory: ModelDirectory, config: dict[str, Any]) -> bool:
    """Whether a sigmoid is applied to scores.

    Raises:
        UnsupportedModel: another function.
    """
    settings = directory.read_json_if_present("config_sentence_transformers.json")
    section = config.get("sentence_transformers")
    name = config.get("sbert_ce_default_activation_function")
    name = settings.get("activation_fn", name)
    if isinstance(section, dict):
        name = section.get("activation_fn", name)
    if name is not None and str(name).rpartition(".")[2] not in ("Identity", "Sigmoid"):
        raise UnsupportedModel(
            f"{directory.path} scores through {str(name)[:80]}; served are Sigmoid and Identity"
        )
    return name is None or not str(name).endswith("Identity")
