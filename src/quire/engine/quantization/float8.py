"""FP8 weights (E4M3 or E5M2) with a scale per tensor, per output, or per block.

Scales multiply, whatever the checkpoint calls them: ``weight_scale`` (per tensor or output) or
``weight_scale_inv`` (per block).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from quire.core.errors import ModelFormatError
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.quantization.compressed_groups import read_groups
from quire.engine.quantization.scheme import FLOATS, Header, Shape, StoredPart, module_of

_FLOAT8 = frozenset({"F8_E4M3", "F8_E5M2"})
_BLOCK = 128


class Float8:
    """``weight[out, in]`` as stored, times its scale."""

    name = "fp8"
    unread = re.compile(
        r".*\.(input_scale|activation_scale|weight_scale_2|k_scale|v_scale|q_scale)$"
    )
    """Scales of FP8 activations and caches, which are not used here."""

    def __init__(self, config: ConfigReader) -> None:
        self._block = read_groups(config, "float").block or (_BLOCK, _BLOCK)
        if config.has("weight_block_size"):
            rows, columns = config.numbers("weight_block_size", 2, low=1, high=1 << 20)
            self._block = (int(rows), int(columns))

    def parts(
        self, name: str, shape: Shape, stored: Mapping[str, Header]
    ) -> dict[str, StoredPart] | None:
        module = module_of(name, shape)
        if module is None or name not in stored or stored[name].dtype not in _FLOAT8:
            return None
        scale = next(
            (
                one
                for one in (f"{module}.weight_scale_inv", f"{module}.weight_scale")
                if one in stored
            ),
            None,
        )
        if scale is None:
            raise ModelFormatError(
                f"tensor {name!r} is {stored[name].dtype} and has neither weight_scale nor "
                "weight_scale_inv: the checkpoint is incomplete; export it again"
            )
        scale_shape = stored[scale].shape
        if scale_shape not in self._scale_shapes(shape):
            raise ModelFormatError(
                f"tensor {scale!r} has shape {list(scale_shape)}; for {list(shape)} in blocks of "
                f"{list(self._block)} it must be one of "
                f"{[list(one) for one in self._scale_shapes(shape)]}"
            )
        return {
            "weight": StoredPart(name, shape, _FLOAT8),
            "scale": StoredPart(scale, scale_shape, FLOATS),
        }

    def dequantize(self, name: str, shape: Shape, parts: Mapping[str, Tensor]) -> Tensor:
        weight, scale = parts["weight"].float(), parts["scale"].float()
        if scale.dim() == 2 and tuple(scale.shape) == self._num_blocks(shape):
            rows, columns = self._block
            scale_RI = scale.repeat_interleave(columns, dim=1)[:, : shape[1]]
            for number, scale_I in enumerate(scale_RI):
                weight[number * rows : (number + 1) * rows] *= scale_I
            return weight
        return weight.mul_(scale[:, None] if scale.dim() == 1 and len(scale) != 1 else scale)

    def _scale_shapes(self, shape: Shape) -> list[Shape]:
        size = shape[0]
        return [(), (1,), (1, 1), (size,), (size, 1), self._num_blocks(shape)]

    def _num_blocks(self, shape: Shape) -> Shape:
        return tuple(-(-size // block) for size, block in zip(shape, self._block, strict=True))
