"""Gemma 3 (text): normalised heads, and for each global layer five local ones with their own
rotation.

Of checkpoints that also take images, the text part is served.
"""

from __future__ import annotations

from dataclasses import replace

from quire.core.errors import UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.models.common_fields import text_part, with_local_rope
from quire.engine.models.decoder_config import DecoderConfig
from quire.engine.models.gemma import read_any_gemma
from quire.engine.models.gemma2 import between_norms, read_softcap

_GLOBAL_THETA, _LOCAL_THETA = 1e6, 1e4
_DEFAULTS = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}
"""Published configurations leave these out."""


def read_gemma3(config: ConfigReader) -> DecoderConfig:
    config = config.over(_DEFAULTS)
    pattern = config.integer("sliding_window_pattern", 1 << 20, default=6)
    plain = read_any_gemma(config.without("rope_parameters", "rope_scaling"), qk_norm="head")
    gemma = between_norms(config, plain, lambda layer: (layer + 1) % pattern != 0)
    gemma = with_local_rope(
        config,
        gemma,
        theta=_GLOBAL_THETA,
        local_theta=_LOCAL_THETA,
        local_name="rope_local_base_freq",
    )
    return replace(
        gemma,
        attention=replace(
            gemma.attention, softcap=read_softcap(config, "attn_logit_softcapping", None)
        ),
        logit_softcap=read_softcap(config, "final_logit_softcapping", None),
    )


def read_gemma3_text_part(config: ConfigReader) -> DecoderConfig:
    return text_part(config, _read_text)


def _read_text(text: ConfigReader) -> DecoderConfig:
    if text.text("model_type", "gemma3_text") != "gemma3_text":
        raise UnsupportedModel(
            f"{text.where} is a {text.text('model_type')[:80]!r}; served inside gemma3 is "
            "gemma3_text"
        )
    return read_gemma3(text)
