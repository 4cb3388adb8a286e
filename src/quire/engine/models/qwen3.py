"""Qwen3 (dense): RMS-normed query and key heads before the rotation."""

from __future__ import annotations

from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.models.decoder_config import DecoderConfig
from quire.engine.models.qwen2 import read_qwen


def read_qwen3(config: ConfigReader) -> DecoderConfig:
    bias = config.flag("attention_bias", False)
    return read_qwen(config, qkv_bias=bias, output_bias=bias, qk_norm="head")
