"""OLMo 3: OLMo 2 with a window in three of four layers, whose rotation is not scaled."""

from __future__ import annotations

from dataclasses import replace

from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.models.common_fields import read_layers, read_window, with_local_rope
from quire.engine.models.decoder_config import DecoderConfig
from quire.engine.models.olmo2 import read_olmo

_THETA = 500_000.0


def read_olmo3(config: ConfigReader) -> DecoderConfig:
    olmo = read_olmo(config.without("rope_parameters", "rope_scaling"))
    window = read_window(config, 4096)
    layers = read_layers(config, olmo.num_layers, window, lambda layer: (layer + 1) % 4 != 0)
    return with_local_rope(
        config,
        replace(olmo, layers=layers),
        theta=_THETA,
        local_theta=_THETA,
        local_name="rope_theta",
    )
