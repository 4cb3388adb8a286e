"""Packs weights element by element, as the published formats define.

Every function returns the stored tensors by suffix and the plain weight that they encode.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Packed = tuple[dict[str, torch.Tensor], torch.Tensor]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def words(values_RCN: NDArray[np.int64], bits: int) -> torch.Tensor:
    """Integers ``[rows, words, 32 / bits]`` to int32 words, the first in the lowest bits."""
    packed = np.zeros(values_RCN.shape[:2], np.uint32)
    for place in range(values_RCN.shape[2]):
        packed |= (values_RCN[:, :, place] << (bits * place)).astype(np.uint32)
    return torch.from_numpy(packed.view(np.int32).copy())


def quantized(
    weight: torch.Tensor, groups_I: NDArray[np.int64], bits: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], torch.Tensor, torch.Tensor]:
    """Integers ``[in, out]``, zeros and scales ``[groups, out]``, and the weight ``[out, in]``."""
    weight_IO = weight.numpy().T
    num_groups, top = int(groups_I.max()) + 1, 2**bits - 1
    low = np.stack([weight_IO[groups_I == g].min(axis=0).clip(max=0) for g in range(num_groups)])
    high = np.stack([weight_IO[groups_I == g].max(axis=0).clip(min=0) for g in range(num_groups)])
    scales_GO = ((high - low) / top).astype(np.float16)
    zeros_GO = np.rint(-low / scales_GO).clip(0, top).astype(np.int64)
    scales_IO, zeros_IO = scales_GO[groups_I].astype(np.float32), zeros_GO[groups_I]
    integers_IO = (np.rint(weight_IO / scales_IO) + zeros_IO).clip(0, top).astype(np.int64)
    plain_IO = (integers_IO - zeros_IO) * scales_IO
    plain = torch.from_numpy(plain_IO.astype(np.float32).T.copy())
    return integers_IO, zeros_GO, torch.from_numpy(scales_GO), plain


def awq(weight: torch.Tensor, group_size: int = 16) -> Packed:
    groups = np.arange(weight.shape[1]) // group_size
    integers_IO, zeros_GO, scales_GO, plain = quantized(weight, groups, 4)

    def pack(values_RO: NDArray[np.int64]) -> torch.Tensor:
        return words(values_RO.reshape(len(values_RO), -1, 8)[:, :, AWQ_ORDER], 4)

    stored = {"qweight": pack(integers_IO), "qzeros": pack(zeros_GO), "scales": scales_GO}
    return stored, plain


def gptq(
    weight: torch.Tensor,
    group_size: int = 16,
    *,
    bits: int = 4,
    form: str = "gptq",
    shuffled: bool = False,
) -> Packed:
    inputs = weight.shape[1]
    groups = np.arange(inputs) // (inputs if group_size == -1 else group_size)
    if shuffled:
        groups = np.random.default_rng(0).permutation(groups)
    integers_IO, zeros_GO, scales_GO, plain = quantized(weight, groups, bits)
    stored_zeros = (zeros_GO - (form == "gptq")) % 2**bits
    per_word = 32 // bits
    columns = integers_IO.reshape(-1, per_word, integers_IO.shape[1]).transpose(0, 2, 1)
    return {
        "qweight": words(columns, bits),
        "qzeros": words(stored_zeros.reshape(len(zeros_GO), -1, per_word), bits),
        "scales": scales_GO,
        "g_idx": torch.from_numpy(groups.astype(np.int32)),
    }, plain


def compressed(
    weight: torch.Tensor, group_size: int = 16, *, symmetric: bool = False, shuffled: bool = False
) -> Packed:
    """The ``pack-quantized`` format, 4 bits. Outputs come first in every tensor."""
    size, inputs = weight.shape
    groups = np.arange(inputs) // (inputs if group_size == -1 else group_size)
    if shuffled:
        groups = np.random.default_rng(0).permutation(groups)
    integers_IO, zeros_GO, scales_GO, plain = quantized(weight, groups, 4)
    if symmetric:
        scales_IO = scales_GO[groups].numpy().astype(np.float32)
        plain = torch.from_numpy(((integers_IO - 8) * scales_IO).T.copy())
    stored = {
        "weight_packed": words(integers_IO.T.reshape(size, -1, 8), 4),
        "weight_scale": scales_GO.T.contiguous(),
        "weight_shape": torch.tensor([size, inputs]),
    }
    if not symmetric:
        zeros_RGN = zeros_GO.T.reshape(-1, 8, len(zeros_GO)).transpose(0, 2, 1)
        stored["weight_zero_point"] = words(zeros_RGN, 4)
    if shuffled:
        stored["weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
    return stored, plain


def float8(weight: torch.Tensor, kind: str, dtype: torch.dtype = torch.float8_e4m3fn) -> Packed:
    """``kind``: tensor, scalar, output, output column or block (of 16 x 16)."""
    size, inputs = weight.shape
    rows = {"block": 16}.get(kind, 1 if "output" in kind else size)
    columns = {"block": 16}.get(kind, inputs)
    scales = torch.zeros(-(-size // rows), -(-inputs // columns))
    stored, plain = torch.zeros(size, inputs, dtype=dtype), torch.zeros(size, inputs)
    for r, c in itertools.product(range(scales.shape[0]), range(scales.shape[1])):
        part = (slice(r * rows, (r + 1) * rows), slice(c * columns, (c + 1) * columns))
        scales[r, c] = weight[part].abs().max() / 300
        stored[part] = (weight[part] / scales[r, c]).to(dtype)
        plain[part] = stored[part].float() * scales[r, c]
    if kind == "block":
        return {"weight": stored, "weight_scale_inv": scales}, plain
    shape: Any = {"scalar": (), "tensor": (1,), "output": (size,), "output column": (size, 1)}[kind]
    return {"weight": stored, "weight_scale": scales.reshape(shape)}, plain


def fp4_value(nibble: int) -> float:
    """E2M1: a sign, two bits of exponent with a bias of 1, one bit of mantissa."""
    sign, exponent, mantissa = nibble >> 3, nibble >> 1 & 3, nibble & 1
    size = mantissa / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + mantissa / 2)
    return -size if sign else size


def mxfp4(count: int, size: int, inputs: int, seed: int) -> Packed:
    """Random experts; the plain tensor is ``[count, inputs, size]``."""
    random = np.random.default_rng(seed)
    nibbles = random.integers(0, 16, (count, size, inputs))
    scales = random.integers(121, 125, (count, size, inputs // 32))
    values = np.vectorize(fp4_value)(nibbles)
    plain = values * np.repeat(2.0 ** (scales - 127), 32, axis=-1)
    pairs = nibbles.reshape(count, size, inputs // 32, 16, 2)
    return {
        "blocks": torch.from_numpy((pairs[..., 0] | pairs[..., 1] << 4).astype(np.uint8)),
        "scales": torch.from_numpy(scales.astype(np.uint8)),
    }, torch.from_numpy(plain).float().transpose(1, 2)
