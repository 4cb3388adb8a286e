"""Copies host arrays to the device in one transfer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16

_DTYPES: dict[str, torch.dtype] = {
    "int32": torch.int32,
    "int64": torch.int64,
    "uint64": torch.int64,  # bit words: kernels shift and mask, so the sign does not matter
    "uint8": torch.uint8,
    "bool": torch.bool,
}


def upload(arrays: Mapping[str, NDArray[np.generic]], device: torch.device) -> dict[str, Tensor]:
    """Tensors of the arrays, by name, as views of one buffer on ``device``.

    Copies from pinned memory without waiting: its allocator keeps the source until the copy is
    done.
    """
    sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays.values()]
    staging = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    host = staging.numpy()
    start = 0
    for array, size in zip(arrays.values(), sizes, strict=True):
        host[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        start += size
    buffer = staging.to(device, non_blocking=True)
    tensors: dict[str, Tensor] = {}
    start = 0
    for (name, array), size in zip(arrays.items(), sizes, strict=True):
        view = buffer[start : start + array.nbytes].view(_DTYPES[array.dtype.name])
        tensors[name] = view.view(array.shape)
        start += size
    return tensors
