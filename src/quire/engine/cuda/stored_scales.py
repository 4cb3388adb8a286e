"""The scales of a checkpoint that stores its projections in FP8, so that they can stay as stored.

The loader has converted such weights to the model's dtype, which has more bits than FP8: with the
same scale they round back to the stored values. Block-wise scales have no form here; those
projections get new scales, per output.

Shapes: O outputs of a projection.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.core.config import EngineConfig
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.checkpoint.model_directory import locate
from quire.engine.checkpoint.shards import Shards
from quire.engine.layers.linear import Linear
from quire.engine.quantization.float8 import Float8
from quire.engine.quantization.registry import scheme_of

_NAMES = ("weight_scale", "weight_scale_inv")


def stores_float8(config: EngineConfig) -> bool:
    """Whether the checkpoint's projections are FP8."""
    directory = locate(config.source)
    reader = ConfigReader(directory.read_config(), str(directory.path / "config.json"))
    return isinstance(scheme_of(reader), Float8)


def stored_scales(config: EngineConfig, linears: list[Linear]) -> dict[int, Tensor]:
    """Scales ``[O]`` by index in ``linears``, where all parts of a projection have one."""
    found: dict[int, Tensor] = {}
    with Shards(locate(config.source)) as shards:
        for place, linear in enumerate(linears):
            parts = {name: _of_part(shards, name, size) for name, size in linear.parts.items()}
            whole = [
                linear.in_order(name, part) for name, part in parts.items() if part is not None
            ]
            if len(whole) == len(parts):
                found[place] = torch.cat(whole).to(linear.weight_OI.device)
    return found


def _of_part(shards: Shards, prefix: str, size: int) -> Tensor | None:
    name = next((f"{prefix}.{one}" for one in _NAMES if f"{prefix}.{one}" in shards.headers), None)
    if name is None:
        return None
    scale = shards.read(name).float().reshape(-1)
    if scale.numel() == 1:
        return scale.expand(size)
    return scale if shards.headers[name].shape in ((size,), (size, 1)) else None
