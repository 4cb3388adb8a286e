"""Reads the fields of ``config.json`` that the families spell in the same way.

``read_decoder`` returns a plain pre-norm decoder; a family replaces the parts in which it differs.
Every value is bounded, because sizes come from untrusted files and determine allocations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from quire.core.errors import ModelFormatError, UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.layers.attention import AttentionConfig
from quire.engine.layers.mlp import Activation, MLPConfig
from quire.engine.layers.norm import NormConfig, QKNormKind
from quire.engine.layers.rope_config import MAX_POSITIONS, RopeConfig, read_rope
from quire.engine.models.decoder_config import DecoderConfig, LayerConfig

MAX_SIZE = 1 << 20
_MAX_EXPERTS = 1 << 16
"""The most experts of all layers together; the largest published models have less than half of
it."""
_MAX_LAYERS = 1024
_MAX_HEADS = 4096

SILU: Mapping[str, Activation] = {"silu": "silu", "swish": "silu"}
GELU_TANH: Mapping[str, Activation] = {"gelu_pytorch_tanh": "gelu_tanh"}


def read_decoder(
    config: ConfigReader,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: QKNormKind | None = None,
    activation: Activation = "silu",
    tie_embeddings: bool = False,
    norm_eps: float = 1e-6,
    theta: float = 10000.0,
) -> DecoderConfig:
    """A plain decoder: pre-norm, one rotation, full attention in every layer.

    ``tie_embeddings``, ``norm_eps`` and ``theta`` are the family's defaults.

    Raises:
        ModelFormatError: a value missing or out of bounds.
    """
    hidden_size = config.integer("hidden_size", MAX_SIZE)
    max_positions = config.integer("max_position_embeddings", MAX_POSITIONS, default=2048)
    num_heads, num_kv_heads, head_dim = _read_heads(config, hidden_size)
    num_layers = config.integer("num_hidden_layers", _MAX_LAYERS)
    rope = read_rope(config, max_positions, head_dim, default_theta=theta)
    return DecoderConfig(
        vocab_size=config.integer("vocab_size", 1 << 24),
        hidden_size=hidden_size,
        max_positions=rope.longest(max_positions),
        default_positions=max_positions if rope.kind == "dynamic" else None,
        attention=AttentionConfig(
            num_heads,
            num_kv_heads,
            head_dim,
            scale=head_dim**-0.5,
            qk_norm=qk_norm,
            qkv_bias=qkv_bias,
            output_bias=output_bias,
        ),
        layers=(LayerConfig(),) * num_layers,
        ropes=(rope,),
        norm=NormConfig(config.number("rms_norm_eps", low=0.0, high=1.0, default=norm_eps)),
        mlp=MLPConfig(config.integer("intermediate_size", MAX_SIZE), activation, mlp_bias),
        tie_embeddings=config.flag("tie_word_embeddings", tie_embeddings),
    )


def read_activation(
    config: ConfigReader, served: Mapping[str, Activation], name: str = "hidden_act"
) -> Activation:
    """The activation under ``name``, by default the first of those ``served``.

    Raises:
        UnsupportedModel: another one.
    """
    wanted = config.text(name, next(iter(served)))
    if wanted not in served:
        raise UnsupportedModel(
            f"{config.where} asks for activation {wanted!r}; this architecture is served with "
            f"{' or '.join(served)} only"
        )
    return served[wanted]


def refuse_windows(config: ConfigReader) -> None:
    """Refuse a configuration that asks for a window, for families without windows.

    Raises:
        UnsupportedModel: it asks for a window.
    """
    kinds = config.raw("layer_types") or []
    windowed = not isinstance(kinds, list) or set(map(str, kinds)) - {"full_attention"}
    if config.has("use_sliding_window") and not config.flag("use_sliding_window"):
        config.set_aside("sliding_window", "max_window_layers")
    if windowed or config.flag("use_sliding_window", False):
        raise UnsupportedModel(
            f"{config.where} asks for sliding-window layers, which this architecture does not "
            "have: use a checkpoint with full attention in every layer"
        )


def read_window(config: ConfigReader, default: int | None = None) -> int | None:
    """``sliding_window`` in tokens; None where there is none."""
    if config.is_null("sliding_window"):
        return None
    if default is None and not config.has("sliding_window"):
        return None
    return config.integer("sliding_window", MAX_POSITIONS, default=default)


def read_layers(
    config: ConfigReader,
    num_layers: int,
    window: int | None,
    is_windowed: Callable[[int], bool],
) -> tuple[LayerConfig, ...]:
    """Layers with and without ``window`` by ``layer_types``, else by ``is_windowed(layer)``.

    Raises:
        ModelFormatError: ``layer_types`` is not a list with one kind for every layer.
        UnsupportedModel: it names a kind that is not served.
    """
    kinds = read_layer_types(config, num_layers)
    if kinds is None:
        windowed = [is_windowed(layer) for layer in range(num_layers)]
    else:
        windowed = [kind == "sliding_attention" for kind in kinds]
    if window is None and any(windowed) and kinds is not None:
        raise ModelFormatError(
            f"{config.where} has layer_types with sliding_attention, but no sliding_window: "
            "the file is damaged; download it again"
        )
    return tuple(LayerConfig(window=window if one else None) for one in windowed)


def read_layer_types(config: ConfigReader, num_layers: int) -> Sequence[str] | None:
    kinds = config.raw("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise ModelFormatError(
            f"{config.where} has layer_types = {str(kinds)[:80]!r}; it must be a list of one kind "
            f"for each of {num_layers} layers"
        )
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModel(
                f"{config.where} has layers of type {str(kind)[:80]!r}; served are full_attention "
                "and sliding_attention: use another checkpoint"
            )
    return kinds


def with_local_rope(
    config: ConfigReader,
    decoder: DecoderConfig,
    *,
    theta: float,
    local_theta: float,
    local_name: str,
) -> DecoderConfig:
    """Give layers with a window a second rotation of their own; reads either spelling.

    The thetas are the family's defaults. In the older spelling the theta of local layers is
    ``local_name``, and scaling applies to full attention only.
    """
    size, longest = decoder.head_dim, decoder.max_positions
    local = RopeConfig(config.number(local_name, low=1.0, high=1e12, default=local_theta))
    both = config.section("rope_parameters")
    if both is not None and config.raw("rope_scaling"):
        raise ModelFormatError(
            f"{config.where} has rope_parameters and rope_scaling: keep rope_parameters, with what "
            "belongs to each kind of layer"
        )
    if both is not None and both.has("rope_type"):
        raise ModelFormatError(
            f"{both.where} describes one rotation; this family has one for full_attention and one "
            "for sliding_attention: name them"
        )
    if both is None:
        full = read_rope(config, longest, size, default_theta=theta)
    else:
        empty = ConfigReader({}, both.where)
        full = read_rope(
            config,
            longest,
            size,
            scaling=both.section("full_attention") or empty,
            default_theta=theta,
        )
        local = read_rope(
            config.without("rope_theta"),
            longest,
            size,
            scaling=both.section("sliding_attention") or empty,
            default_theta=local.theta,
        )
    return replace(
        decoder,
        layers=tuple(
            replace(layer, rope=0 if layer.window is None else 1) for layer in decoder.layers
        ),
        ropes=(full, local),
        max_positions=full.longest(longest),
    )


def with_rotated_pairs(decoder: DecoderConfig) -> DecoderConfig:
    """``decoder`` for checkpoints in which a plane is a pair of neighbouring elements of a head."""
    num_pairs = decoder.ropes[0].rotary_dim(decoder.head_dim) // 2
    return replace(decoder, attention=replace(decoder.attention, rotated_pairs=num_pairs))


def text_part(config: ConfigReader, read: Callable[[ConfigReader], DecoderConfig]) -> DecoderConfig:
    """The decoder of a checkpoint that also takes images; its vision tower is not read.

    ``tie_word_embeddings`` may be outside of the text part.

    Raises:
        ModelFormatError: there is no ``text_config``.
    """
    text = config.section("text_config")
    if text is None:
        raise ModelFormatError(
            f"{config.where} has no text_config: the file is damaged; download it again"
        )
    tied = config.raw("tie_word_embeddings")
    return replace(
        read(text if tied is None else text.over({"tie_word_embeddings": tied})),
        prefix="language_model.model",
        other_parts=("vision_tower.", "multi_modal_projector."),
    )


def read_num_experts(config: ConfigReader, name: str, *, default_top_k: int) -> tuple[int, int]:
    """The number of experts (under ``name``), and the number per token."""
    num_layers = config.integer("num_hidden_layers", _MAX_LAYERS)
    num_experts = config.integer(name, _MAX_EXPERTS // num_layers)
    top_k = config.integer("num_experts_per_tok", num_experts, default=default_top_k)
    return num_experts, top_k


def _read_heads(config: ConfigReader, hidden_size: int) -> tuple[int, int, int]:
    num_heads = config.integer("num_attention_heads", _MAX_HEADS)
    num_kv_heads = config.integer("num_key_value_heads", _MAX_HEADS, default=num_heads)
    head_dim = config.integer("head_dim", 4096, default=max(1, hidden_size // num_heads))
    if num_heads % num_kv_heads or head_dim % 2:
        raise ModelFormatError(
            f"{config.where}: {num_heads} heads over {num_kv_heads} KV heads of size {head_dim}; "
            "heads must divide evenly and the head size be even"
        )
    return num_heads, num_kv_heads, head_dim
