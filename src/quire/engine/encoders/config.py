"""What an encoder's ``config.json`` says, within bounds. Knows no tensors.

Families: BERT (Devlin et al. 2018) and RoBERTa (Liu et al. 2019), of which XLM-RoBERTa is one. They
differ in how positions are numbered and in the head of a classifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.core.errors import UnsupportedModel
from quire.engine.config_reader import ConfigReader

ARCHITECTURES: Mapping[str, tuple[str, bool]] = {
    "BertModel": ("bert", False),
    "BertForMaskedLM": ("bert", False),
    "BertForSequenceClassification": ("bert", True),
    "RobertaModel": ("roberta", False),
    "RobertaForMaskedLM": ("roberta", False),
    "RobertaForSequenceClassification": ("roberta", True),
    "XLMRobertaModel": ("roberta", False),
    "XLMRobertaForMaskedLM": ("roberta", False),
    "XLMRobertaForSequenceClassification": ("roberta", True),
}
"""Family, and whether it is a cross-encoder."""

_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """``first_position``: the position of a sequence's first token. ``num_positions`` counts those
    before it too. ``activation``: of the feed-forward part."""

    family: str
    is_classifier: bool
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

    @property
    def max_tokens(self) -> int:
        return self.num_positions - self.first_position


def read_shape(values: Mapping[str, Any], where: str) -> EncoderShape:
    """The shape that ``config.json`` (at ``where``) gives.

    Raises:
        UnsupportedModel: another architecture, or a variant of one that is not built in.
        ModelFormatError: a value that is missing or out of bounds.
    """
    named = values.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else None
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{where} is of architecture {str(architecture)[:80]}; encoders are "
            f"{', '.join(ARCHITECTURES)}"
        )
    family, is_classifier = ARCHITECTURES[architecture]
    reader = ConfigReader(values, where)
    _check_variant(reader)
    padding = reader.integer("pad_token_id", _MAX, low=0, default=1) if family == "roberta" else -1
    shape = EncoderShape(
        family=family,
        is_classifier=is_classifier,
        vocab_size=reader.integer("vocab_size", 1 << 24),
        hidden_size=reader.integer("hidden_size", 1 << 16),
        num_layers=reader.integer("num_hidden_layers", 1024),
        num_heads=reader.integer("num_attention_heads", 1024),
        intermediate_size=reader.integer("intermediate_size", 1 << 18),
        num_positions=reader.integer("max_position_embeddings", _MAX),
        num_types=reader.integer("type_vocab_size", 1024),
        first_position=padding + 1,
        norm_eps=reader.number("layer_norm_eps", low=0, high=1, default=1e-12),
        activation=reader.text("hidden_act", "gelu"),
    )
    if shape.hidden_size % shape.num_heads or shape.max_tokens < 3:
        raise UnsupportedModel(
            f"{where}: {shape.hidden_size} values in {shape.num_heads} heads and "
            f"{shape.num_positions} positions are no encoder's"
        )
    return shape


def _check_variant(reader: ConfigReader) -> None:
    if reader.text("position_embedding_type", "absolute") != "absolute":
        raise UnsupportedModel(f"{reader.where}: only absolute position embeddings are served")
    if reader.flag("is_decoder", False):
        raise UnsupportedModel(f"{reader.where} describes a decoder: serve it as a model")
    labels = reader.raw("id2label")
    if isinstance(labels, dict) and len(labels) != 1 and _is_classifier(reader):
        raise UnsupportedModel(
            f"{reader.where} tells {len(labels)} classes apart; a cross-encoder has one score"
        )


def _is_classifier(reader: ConfigReader) -> bool:
    return ARCHITECTURES[reader.values["architectures"][0]][1]


__all__ = ["ARCHITECTURES", "EncoderShape", "read_shape"]
