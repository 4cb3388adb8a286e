"""LLaVA 1.5 and checkpoints of its layout: a CLIP or SigLIP tower, a projector, a plain decoder.

An image is one run of input embeddings between those of the text, at consecutive positions. The
decoder belongs to another family, named in ``text_config``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quire.core.errors import UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.models.common_fields import text_part
from quire.engine.models.decoder_config import DecoderConfig
from quire.engine.models.llama import read_llama
from quire.engine.models.mistral import read_mistral
from quire.engine.models.qwen2 import read_qwen2
from quire.engine.models.qwen3 import read_qwen3

_DECODERS: Mapping[str, Callable[[ConfigReader], DecoderConfig]] = {
    "llama": read_llama,
    "mistral": read_mistral,
    "qwen2": read_qwen2,
    "qwen3": read_qwen3,
}

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    },
    "mistral": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    },
}
"""Published configurations leave out values of the text part that are its family's defaults."""


def read_llava(config: ConfigReader) -> DecoderConfig:
    return text_part(config, _read_decoder)


def _read_decoder(text: ConfigReader) -> DecoderConfig:
    kind = text.text("model_type", "llama")
    if kind not in _DECODERS:
        raise UnsupportedModel(
            f"{text.where} is a {kind[:80]!r}; served with a vision tower are {sorted(_DECODERS)}"
        )
    return _DECODERS[kind](text.over(_DEFAULTS.get(kind, {})))
