"""Reads a ModernBERT's ``config.json``. Knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import ModelFormatError, UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader

_MAX_THETA = 1e12
_KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class ModernBertShape:
    """``reaches``: how many tokens to either side each layer sees, None: all. ``thetas``: of the
    rotation in layers with full attention, and in the others. The last three say which products and
    norms have biases; ``mean_pooled``: a classifier reads the mean, not the first token."""

    vocab_size: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    max_positions: int
    reaches: tuple[int | None, ...]
    thetas: tuple[float, float]
    norm_eps: float
    activation: str
    classifier_activation: str
    mean_pooled: bool
    attention_bias: bool
    mlp_bias: bool
    norm_bias: bool
    classifier_bias: bool


def read_modernbert(reader: ConfigReader) -> ModernBertShape:
    """Read the shape. Raises ``UnsupportedModel`` or ``ModelFormatError`` for unserved or damaged
    configurations."""
    hidden_size = reader.integer("hidden_size", 1 << 16)
    num_heads = reader.integer("num_attention_heads", 1024)
    pooling = reader.text("classifier_pooling", "cls")
    if hidden_size % num_heads or (hidden_size // num_heads) % 2 or pooling not in ("cls", "mean"):
        raise UnsupportedModel(
            f"{reader.where}: {hidden_size} values in {num_heads} heads, pooled by {pooling[:40]!r}"
            "; served are heads of an even size, pooled by 'cls' or 'mean'"
        )
    return ModernBertShape(
        vocab_size=reader.integer("vocab_size", 1 << 24),
        hidden_size=hidden_size,
        num_heads=num_heads,
        intermediate_size=reader.integer("intermediate_size", 1 << 18),
        max_positions=reader.integer("max_position_embeddings", 1 << 20, default=8192),
        reaches=_reaches(reader),
        thetas=_thetas(reader),
        norm_eps=reader.number("norm_eps", low=0, high=1, default=1e-5),
        activation=reader.text("hidden_activation", "gelu"),
        classifier_activation=reader.text("classifier_activation", "gelu"),
        mean_pooled=pooling == "mean",
        attention_bias=reader.flag("attention_bias", False),
        mlp_bias=reader.flag("mlp_bias", False),
        norm_bias=reader.flag("norm_bias", False),
        classifier_bias=reader.flag("classifier_bias", False),
    )


def _reaches(reader: ConfigReader) -> tuple[int | None, ...]:
    num_layers = reader.integer("num_hidden_layers", 1024)
    every = reader.integer("global_attn_every_n_layers", 1024, default=3)
    reach = reader.integer("local_attention", 1 << 20, default=128) // 2
    reader.set_aside("sliding_window")  # transformers writes half of local_attention there
    kinds = reader.raw("layer_types")
    if kinds is None:
        kinds = [_KINDS[bool(layer % every)] for layer in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers or set(map(str, kinds)) - {*_KINDS}:
        raise ModelFormatError(
            f"{reader.where} has layer_types = {str(kinds)[:80]!r}; it must be a list of "
            f"{' or '.join(_KINDS)} for each of {num_layers} layers"
        )
    return tuple(reach if kind == "sliding_attention" else None for kind in kinds)


def _thetas(reader: ConfigReader) -> tuple[float, float]:
    if reader.raw("rope_scaling"):
        raise UnsupportedModel(f"{reader.where} scales its rotation, which is not served here")
    both = reader.section("rope_parameters") or ConfigReader({}, reader.where)
    thetas = []
    for kind, old, default in (
        ("full_attention", "global_rope_theta", 160_000.0),
        ("sliding_attention", "local_rope_theta", 10_000.0),
    ):
        theta = reader.number(old, low=1.0, high=_MAX_THETA, default=default)
        rope = both.section(kind) or ConfigReader({}, reader.where)
        if rope.text("rope_type", "default") != "default":
            raise UnsupportedModel(f"{rope.where} scales its rotation, which is not served here")
        thetas.append(rope.number("rope_theta", low=1.0, high=_MAX_THETA, default=theta))
    return thetas[0], thetas[1]
