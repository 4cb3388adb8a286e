"""Llama 2, 3 and 3.x (and checkpoints that follow its layout): the plain pre-norm decoder."""

from __future__ import annotations

from quire.core.errors import ModelFormatError, UnsupportedModel
from quire.engine.config_reader import ConfigReader
from quire.engine.layers.attention import AttentionShape
from quire.engine.layers.rotary import MAX_POSITIONS, read_rope
from quire.engine.models.decoder import DecoderConfig

_MAX_SIZE = 1 << 20
_MAX_LAYERS = 1024
_MAX_HEADS = 4096


def read_llama(config: ConfigReader) -> DecoderConfig:
    """Llama's configuration; biases are optional there."""
    attention_bias = config.flag("attention_bias", False)
    return read_decoder(
        config,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=config.flag("mlp_bias", False),
    )


def read_decoder(
    config: ConfigReader,
    *,
    qkv_bias: bool,
    output_bias: bool,
    mlp_bias: bool = False,
    head_norm: bool = False,
) -> DecoderConfig:
    """The fields that every family of this layout spells in the same way.

    Raises:
        ModelFormatError: a value missing or out of bounds.
        UnsupportedModel: another activation, or sliding windows.
    """
    _check_supported(config)
    hidden_size = config.integer("hidden_size", _MAX_SIZE)
    heads = _read_heads(config, hidden_size)
    max_positions = config.integer("max_position_embeddings", MAX_POSITIONS, default=2048)
    return DecoderConfig(
        vocab_size=config.integer("vocab_size", 1 << 24),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size", _MAX_SIZE),
        num_layers=config.integer("num_hidden_layers", _MAX_LAYERS),
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        max_positions=max_positions,
        norm_eps=config.number("rms_norm_eps", low=0.0, high=1.0, default=1e-6),
        rope=read_rope(config, max_positions),
        tie_embeddings=config.flag("tie_word_embeddings", False),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        head_norm=head_norm,
    )


def _read_heads(config: ConfigReader, hidden_size: int) -> AttentionShape:
    num_heads = config.integer("num_attention_heads", _MAX_HEADS)
    num_kv_heads = config.integer("num_key_value_heads", _MAX_HEADS, default=num_heads)
    head_dim = config.integer("head_dim", 4096, default=max(1, hidden_size // num_heads))
    if num_heads % num_kv_heads or head_dim % 2:
        raise ModelFormatError(
            f"{config.where}: {num_heads} heads over {num_kv_heads} KV heads of size {head_dim}; "
            "heads must divide evenly and the head size be even"
        )
    return AttentionShape(num_heads, num_kv_heads, head_dim)


def _check_supported(config: ConfigReader) -> None:
    activation = config.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModel(
            f"{config.where} asks for activation {activation!r}; this architecture is served "
            "with silu only"
        )
    layer_types = config.values.get("layer_types") or []
    windowed = not isinstance(layer_types, list) or set(map(str, layer_types)) - {"full_attention"}
    if windowed or config.flag("use_sliding_window", False):
        raise UnsupportedModel(
            f"{config.where} asks for sliding-window layers, which are not served yet: "
            "use a checkpoint with full attention in every layer"
        )
    if config.section("quantization_config") is not None:
        raise UnsupportedModel(
            f"{config.where} holds quantised weights (quantization_config): "
            "use the float16, bfloat16 or float32 checkpoint of the model"
        )
