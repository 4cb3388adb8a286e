"""AWQ (Lin et al., 2023) and GPTQ (Frantar et al., 2022): small integers packed into int32.

Both store ``weight[out, in] = (q - zero) * scale`` with one zero and scale for every output and
group of inputs. Tensors are transposed: inputs are rows, outputs columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from quire.core.errors import ModelFormatError, UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.quantization.scheme import (
    FLOATS,
    Header,
    Shape,
    StoredPart,
    check_divides,
    module_of,
)

INT32 = frozenset({"I32"})
_MAX_GROUP = 1 << 20
_AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]
"""Column c of eight is in nibble ``_AWQ_ORDER[c]`` of its word (even columns first)."""


def unpack(words: Tensor, bits: int) -> Tensor:
    """Unpacks int32 ``[R, C]`` into unsigned integers ``[R, C, 32 / bits]``, uint8, lowest bits
    first."""
    octets = words.contiguous().view(torch.uint8).view(*words.shape, 4)  # lowest first
    mask = (1 << bits) - 1
    parts = [(octets >> shift) & mask for shift in range(0, 8, bits)]
    return torch.stack(parts, dim=-1).flatten(-2)


def scaled(
    weights_OI: Tensor, zeros_OG: Tensor, scales_OG: Tensor, groups_I: Tensor | None
) -> Tensor:
    """``(weights - zeros) * scales`` in float32; groups are consecutive if ``groups_I`` is None.

    In place as far as possible, because checkpoints have billions of weights.
    """
    size, inputs = weights_OI.shape
    zeros_OG, scales_OG = zeros_OG.float(), scales_OG.float()
    if groups_I is not None:
        return (weights_OI.float() - zeros_OG[:, groups_I]).mul_(scales_OG[:, groups_I])
    plain = weights_OI.view(size, scales_OG.shape[1], -1).float()
    return plain.sub_(zeros_OG[..., None]).mul_(scales_OG[..., None]).view(size, inputs)


def check_groups(name: str, groups_I: Tensor, num_groups: int) -> Tensor:
    """The stored group of every input, as an index.

    Raises:
        ModelFormatError: an index out of range.
    """
    if int(groups_I.min()) < 0 or int(groups_I.max()) >= num_groups:
        raise ModelFormatError(
            f"tensor {name!r}: g_idx names groups {int(groups_I.min())} to "
            f"{int(groups_I.max())} of {num_groups}: the checkpoint is damaged"
        )
    return groups_I.long()


class AWQ:
    """The GEMM layout: ``qweight [in, out / 8]``, ``qzeros [groups, out / 8]``, both packed along
    the outputs, ``scales [groups, out]``."""

    name = "awq"
    unread = re.compile(r"(?!)")

    def __init__(self, config: ConfigReader) -> None:
        bits = config.integer("bits", 64, default=4)
        version = config.text("version", "gemm").lower()
        if bits != 4 or version != "gemm" or not config.flag("zero_point", True):
            raise UnsupportedModel(
                f"{config.where}: AWQ with {bits} bits, version {version!r}; served are 4 bits, "
                "version 'gemm', with zero points"
            )
        self._group_size = _read_group_size(config)

    def parts(
        self, name: str, shape: Shape, stored: Mapping[str, Header]
    ) -> dict[str, StoredPart] | None:
        module = module_of(name, shape)
        if module is None or f"{module}.qweight" not in stored:
            return None
        size, inputs = shape
        group = self._group_size or inputs
        check_divides(name, shape, (8, group))
        num_groups = inputs // group
        return {
            "qweight": StoredPart(f"{module}.qweight", (inputs, size // 8), INT32),
            "qzeros": StoredPart(f"{module}.qzeros", (num_groups, size // 8), INT32),
            "scales": StoredPart(f"{module}.scales", (num_groups, size), FLOATS),
        }

    def dequantize(self, name: str, shape: Shape, parts: Mapping[str, Tensor]) -> Tensor:
        weights_IO = unpack(parts["qweight"], 4)[..., _AWQ_ORDER].flatten(1)
        zeros_GO = unpack(parts["qzeros"], 4)[..., _AWQ_ORDER].flatten(1)
        return scaled(weights_IO.T.contiguous(), zeros_GO.T, parts["scales"].T, None)


class GPTQ:
    """``qweight [in * bits / 32, out]`` is packed along the inputs, ``qzeros [groups, out * bits /
    32]`` along the outputs; ``scales [groups, out]``. ``g_idx [in]`` is the group of every input,
    not necessarily in order (``desc_act``).

    The first version of the format stores each zero minus one.
    """

    name = "gptq"
    unread = re.compile(r".*\.g_idx$")

    def __init__(self, config: ConfigReader) -> None:
        self._bits = config.integer("bits", 64)
        form = config.text("checkpoint_format", "gptq")
        if self._bits not in (2, 4, 8) or form not in ("gptq", "gptq_v2"):
            raise UnsupportedModel(
                f"{config.where}: GPTQ with {self._bits} bits in the form {form!r}; served are 2, "
                "4 and 8 bits in the forms 'gptq' and 'gptq_v2'"
            )
        self._zero_offset = 1 if form == "gptq" else 0
        self._group_size = _read_group_size(config)
        self._shuffled = config.flag("desc_act", False)

    def parts(
        self, name: str, shape: Shape, stored: Mapping[str, Header]
    ) -> dict[str, StoredPart] | None:
        module = module_of(name, shape)
        if module is None or f"{module}.qweight" not in stored:
            return None
        size, inputs = shape
        per_word = 32 // self._bits
        check_divides(name, shape, (per_word, per_word))
        num_groups = -(-inputs // (self._group_size or inputs))
        parts = {
            "qweight": StoredPart(f"{module}.qweight", (inputs // per_word, size), INT32),
            "qzeros": StoredPart(f"{module}.qzeros", (num_groups, size // per_word), INT32),
            "scales": StoredPart(f"{module}.scales", (num_groups, size), FLOATS),
        }
        if self._shuffled or f"{module}.g_idx" in stored:
            parts["g_idx"] = StoredPart(f"{module}.g_idx", (inputs,), INT32)
        return parts

    def dequantize(self, name: str, shape: Shape, parts: Mapping[str, Tensor]) -> Tensor:
        weights_OI = unpack(parts["qweight"].T, self._bits).flatten(1)
        zeros_GO = unpack(parts["qzeros"], self._bits).flatten(1) + self._zero_offset
        zeros_GO &= (1 << self._bits) - 1
        groups_I = self._groups(name, shape[1], len(zeros_GO), parts.get("g_idx"))
        return scaled(weights_OI, zeros_GO.T, parts["scales"].T, groups_I)

    def _groups(
        self, name: str, num_inputs: int, num_groups: int, stored_I: Tensor | None
    ) -> Tensor | None:
        """The group of every input; None if groups are consecutive and of one size."""
        group_size = self._group_size or num_inputs
        ordered_I = torch.arange(num_inputs) // group_size
        groups_I = ordered_I if stored_I is None else check_groups(name, stored_I, num_groups)
        even = num_groups * group_size == num_inputs
        return None if even and torch.equal(groups_I, ordered_I) else groups_I


def _read_group_size(config: ConfigReader) -> int | None:
    """The number of inputs per group; None if all inputs form one group (``-1``)."""
    size = config.integer("group_size", _MAX_GROUP, low=-1, default=128)
    return size if size > 0 else None
