"""The ``pack-quantized`` format of compressed-tensors: signed integers packed into int32.

``weight_packed [out, in * bits / 32]`` is packed along the inputs, lowest bits first; values, and
zeros if there are any, are stored with half of their range added. ``weight_scale [out, groups]``;
``weight_zero_point [out * bits / 32, groups]`` is packed along the outputs; ``weight_g_idx [in]``
is the group of every input, if groups are not consecutive.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from quire.core.errors import ModelFormatError
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.quantization.compressed_groups import read_groups
from quire.engine.quantization.packed_integers import INT32, check_groups, scaled, unpack
from quire.engine.quantization.scheme import FLOATS, Header, Shape, StoredPart, module_of

_BITS = (4, 8)


class CompressedIntegers:
    """Bits and groups are derived from the tensors' shapes; they may differ between layers. If the
    configuration says that inputs are reordered, the file must contain the group of every input."""

    name = "compressed-tensors"
    unread = re.compile(r".*\.weight_shape$")

    def __init__(self, config: ConfigReader) -> None:
        self._is_reordered = read_groups(config, "int").is_reordered

    def parts(
        self, name: str, shape: Shape, stored: Mapping[str, Header]
    ) -> dict[str, StoredPart] | None:
        module = module_of(name, shape)
        if module is None or f"{module}.weight_packed" not in stored:
            return None
        size, inputs = shape
        bits = self._bits(name, shape, stored[f"{module}.weight_packed"].shape)
        scale = stored.get(f"{module}.weight_scale", Header((), "")).shape
        num_groups = scale[1] if len(scale) == 2 and scale[1] and not inputs % scale[1] else 1
        parts = {
            "packed": StoredPart(f"{module}.weight_packed", (size, inputs * bits // 32), INT32),
            "scale": StoredPart(f"{module}.weight_scale", (size, num_groups), FLOATS),
        }
        if (zeros := f"{module}.weight_zero_point") in stored:
            parts["zeros"] = StoredPart(zeros, (-(-size * bits // 32), num_groups), INT32)
        if (groups := f"{module}.weight_g_idx") in stored or self._is_reordered:
            parts["groups"] = StoredPart(groups, (inputs,), INT32)
        return parts

    def dequantize(self, name: str, shape: Shape, parts: Mapping[str, Tensor]) -> Tensor:
        size, inputs = shape
        bits = parts["packed"].shape[1] * 32 // inputs
        num_groups = parts["scale"].shape[1]
        zeros_OG = torch.full((size, num_groups), 1 << (bits - 1))
        if "zeros" in parts:
            zeros_OG = unpack(parts["zeros"].T, bits).flatten(1)[:, :size].T
        groups_I = check_groups(name, parts["groups"], num_groups) if "groups" in parts else None
        weights_OI = unpack(parts["packed"], bits).flatten(1)
        return scaled(weights_OI, zeros_OG, parts["scale"], groups_I)

    def _bits(self, name: str, shape: Shape, packed: Shape) -> int:
        for bits in _BITS:
            if packed == (shape[0], shape[1] * bits // 32) and not shape[1] * bits % 32:
                return bits
        raise ModelFormatError(
            f"tensor {name!r} of shape {list(shape)} is packed as {list(packed)}, which is neither "
            f"{_BITS[0]} nor {_BITS[1]} bits: quantization_config does not belong to this model"
        )
