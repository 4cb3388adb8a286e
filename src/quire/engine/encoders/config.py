"""Reads an encoder's ``config.json`` within bounds. Knows no tensors and imports no torch.

Families: BERT (Devlin et al. 2018), RoBERTa (Liu et al. 2019), of which XLM-RoBERTa is one, and
MPNet (Song et al. 2020), which differ in how positions are encoded and in the head of a classifier;
ModernBERT (Warner et al. 2024); decoders that embed or rerank (Qwen3-Embedding, Qwen3-Reranker).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from quire.core.errors import UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.encoders.modernbert_config import ModernBertShape, read_modernbert
from quire.engine.models.nearest import nearest_name

EncoderFamily = Literal["bert", "roberta", "mpnet", "modernbert", "qwen3"]
HeadKind = Literal["none", "classifier", "words"]

ARCHITECTURES: Mapping[str, tuple[EncoderFamily, HeadKind]] = {
    "BertModel": ("bert", "none"),
    "BertForMaskedLM": ("bert", "none"),
    "BertForSequenceClassification": ("bert", "classifier"),
    "RobertaModel": ("roberta", "none"),
    "RobertaForMaskedLM": ("roberta", "none"),
    "RobertaForSequenceClassification": ("roberta", "classifier"),
    "XLMRobertaModel": ("roberta", "none"),
    "XLMRobertaForMaskedLM": ("roberta", "none"),
    "XLMRobertaForSequenceClassification": ("roberta", "classifier"),
    "MPNetModel": ("mpnet", "none"),
    "MPNetForMaskedLM": ("mpnet", "none"),
    "MPNetForSequenceClassification": ("mpnet", "classifier"),
    "ModernBertModel": ("modernbert", "none"),
    "ModernBertForMaskedLM": ("modernbert", "none"),
    "ModernBertForSequenceClassification": ("modernbert", "classifier"),
    "Qwen3Model": ("qwen3", "none"),
    "Qwen3ForCausalLM": ("qwen3", "words"),
    "Qwen3ForSequenceClassification": ("qwen3", "classifier"),
}
"""Family and head: none, one score, or language model logits, which are used unless the directory's
modules say that the model embeds (``quire.engine.encoders.modules``)."""

_MAX = 1 << 20
_MPNET_PADDING = 1


@dataclass(frozen=True, slots=True)
class BertShape:
    """``first_position``: the position of a sequence's first token. ``num_positions`` includes
    those before it. ``num_types``: 0 where tokens have no types. ``activation``: of the
    feed-forward layer. ``num_buckets``: distance buckets, each with a bias per head; 0: none."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    num_positions: int
    num_types: int
    first_position: int
    norm_eps: float
    activation: str
    num_buckets: int = 0


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """``body``: None for a decoder, whose shape its own family reads."""

    family: EncoderFamily
    head: HeadKind
    vocab_size: int
    hidden_size: int
    max_tokens: int
    num_types: int
    body: BertShape | ModernBertShape | None


def read_shape(reader: ConfigReader) -> EncoderShape:
    """The shape that ``config.json`` gives.

    Raises:
        UnsupportedModel: another architecture, or a variant of one that is not built in.
        ModelFormatError: a value that is missing or out of bounds.
    """
    family, head = _architecture(reader)
    labels = reader.raw("id2label")
    if head == "classifier" and isinstance(labels, dict) and len(labels) != 1:
        raise UnsupportedModel(
            f"{reader.where} has {len(labels)} classes; a cross-encoder has one score"
        )
    body: BertShape | ModernBertShape | None = None
    num_types = 1
    if family == "qwen3":
        max_tokens = reader.integer("max_position_embeddings", 1 << 24, default=32768)
    elif family == "modernbert":
        body = read_modernbert(reader)
        max_tokens = body.max_positions
    else:
        body = _read_bert(reader, family)
        max_tokens, num_types = body.num_positions - body.first_position, max(1, body.num_types)
    if max_tokens < 3:
        raise UnsupportedModel(f"{reader.where}: a model of {max_tokens} positions is no encoder")
    return EncoderShape(
        family=family,
        head=head,
        vocab_size=reader.integer("vocab_size", 1 << 24),
        hidden_size=reader.integer("hidden_size", 1 << 16),
        max_tokens=max_tokens,
        num_types=num_types,
        body=body,
    )


def _architecture(reader: ConfigReader) -> tuple[EncoderFamily, HeadKind]:
    named = reader.raw("architectures")
    architecture = named[0] if isinstance(named, list) and named else None
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{reader.where} is of architecture {str(architecture)[:80]}, which is not served as "
            f"an encoder{_instead(str(architecture))}. Encoders are {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[architecture]


def _instead(architecture: str) -> str:
    """The nearest served family, by prefix of the name."""
    if architecture.endswith("ForCausalLM"):
        return "; load what generates with --model"
    found = nearest_name(architecture, ARCHITECTURES)
    return "" if found is None else f"; nearest is {found}"


def _read_bert(reader: ConfigReader, family: EncoderFamily) -> BertShape:
    if reader.text("position_embedding_type", "absolute") != "absolute":
        raise UnsupportedModel(f"{reader.where}: only absolute position embeddings are served")
    if reader.flag("is_decoder", False):
        raise UnsupportedModel(f"{reader.where} describes a decoder: serve it as a model")
    first_position, num_types, num_buckets = 0, 0, 0
    if family == "mpnet":
        first_position = _MPNET_PADDING + 1
        num_buckets = reader.integer("relative_attention_num_buckets", 1 << 12, default=32)
    else:
        num_types = reader.integer("type_vocab_size", 1024)
    if family == "roberta":
        first_position = reader.integer("pad_token_id", _MAX, low=0, default=1) + 1
    shape = BertShape(
        vocab_size=reader.integer("vocab_size", 1 << 24),
        hidden_size=reader.integer("hidden_size", 1 << 16),
        num_layers=reader.integer("num_hidden_layers", 1024),
        num_heads=reader.integer("num_attention_heads", 1024),
        intermediate_size=reader.integer("intermediate_size", 1 << 18),
        num_positions=reader.integer("max_position_embeddings", _MAX),
        num_types=num_types,
        first_position=first_position,
        norm_eps=reader.number("layer_norm_eps", low=0, high=1, default=1e-12),
        activation=reader.text("hidden_act", "gelu"),
        num_buckets=num_buckets,
    )
    if shape.hidden_size % shape.num_heads or num_buckets not in (0, 32):
        raise UnsupportedModel(
            f"{reader.where}: {shape.hidden_size} values in {shape.num_heads} heads and "
            f"{num_buckets} buckets of distances are no encoder's; MPNet has 32 buckets"
        )
    return shape
