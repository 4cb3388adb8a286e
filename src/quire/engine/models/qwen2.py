"""Qwen2 and Qwen2.5: Llama's decoder with biases on queries, keys and values."""

from __future__ import annotations

from quire.engine.config_reader import ConfigReader
from quire.engine.models.decoder import DecoderConfig
from quire.engine.models.llama import read_decoder


def read_qwen2(config: ConfigReader) -> DecoderConfig:
    return read_decoder(config, qkv_bias=True, output_bias=False)
