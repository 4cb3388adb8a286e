"""MXFP4 (OCP Microscaling Formats 1.0): blocks of 32 four-bit floats with one power of two each.

Used for the experts of gpt-oss: ``NAME_blocks [E, out, in / 32, 16]`` holds two values per byte,
the first in its low half, and ``NAME_scales [E, out, in / 32]`` exponents with a bias of 127.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.quantization.scheme import Header, Shape, StoredPart, check_divides

_BLOCK = 32
_BYTES = frozenset({"U8"})
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""E2M1 without the sign, which is the highest of the four bits."""


class MXFP4:
    """Plain tensors are ``[E, in, out]``, as the unquantised checkpoint stores them."""

    name = "mxfp4"
    unread = re.compile(r"(?!)")

    def __init__(self, config: ConfigReader) -> None:
        del config  # the format has no parameters

    def parts(
        self, name: str, shape: Shape, stored: Mapping[str, Header]
    ) -> dict[str, StoredPart] | None:
        if len(shape) != 3 or f"{name}_blocks" not in stored:
            return None
        count, inputs, size = shape
        check_divides(name, shape, (1, _BLOCK, 1))
        num_blocks = inputs // _BLOCK
        return {
            "blocks": StoredPart(f"{name}_blocks", (count, size, num_blocks, _BLOCK // 2), _BYTES),
            "scales": StoredPart(f"{name}_scales", (count, size, num_blocks), _BYTES),
        }

    def dequantize(self, name: str, shape: Shape, parts: Mapping[str, Tensor]) -> Tensor:
        """Returns bfloat16, which represents every value exactly."""
        values = torch.tensor([*_VALUES, *(-one for one in _VALUES)], dtype=torch.bfloat16)
        count, inputs, size = shape
        plain_EOI = torch.empty(count, size, inputs, dtype=torch.bfloat16)
        for expert, blocks in enumerate(parts["blocks"]):  # one at a time, because they are large
            pairs = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
            exponents = parts["scales"][expert].int() - 127
            plain_EOI[expert] = torch.ldexp(values[pairs.int()], exponents[..., None]).flatten(-2)
        return plain_EOI.transpose(1, 2)
