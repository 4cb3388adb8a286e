"""Qwen3 (dense): Llama's decoder with RMS-normed query and key heads before the rotation."""

from __future__ import annotations

from quire.engine.config_reader import ConfigReader
from quire.engine.models.decoder import DecoderConfig
from quire.engine.models.llama import read_decoder


def read_qwen3(config: ConfigReader) -> DecoderConfig:
    bias = config.flag("attention_bias", False)
    return read_decoder(config, qkv_bias=bias, output_bias=bias, head_norm=True)
