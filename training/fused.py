"""Attention of ``attention_amx.cpp``, for processors with AMX: scores never leave the caches.

Shapes: N tokens of a step, H query heads, K key/value heads, E head size (32).
"""

import ctypes
import hashlib
import platform
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.attention import RowGroup, attend

SOURCE = Path(__file__).with_name("attention_amx.cpp")
HEAD_SIZE = 32
Attend = Callable[[Tensor, Tensor, Tensor, Sequence[RowGroup]], Tensor]
_FLAGS = ("-O3", "-std=c++17", "-march=sapphirerapids", "-fPIC", "-shared")


@cache
def library() -> ctypes.CDLL | None:
    """Build and load the kernel; None where the processor has no tiles of bf16.

    Raises:
        subprocess.CalledProcessError: the compiler refused the source.
    """
    cpus = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not cpus.exists() or "amx_bf16" not in cpus.read_text():
        return None
    key = hashlib.sha256(SOURCE.read_bytes() + " ".join(_FLAGS).encode()).hexdigest()[:16]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / f"attention-{key}.so"
        subprocess.run(["g++", *_FLAGS, str(SOURCE), "-o", str(target)], check=True)
        loaded = ctypes.CDLL(str(target))
    loaded.attention_available.restype = ctypes.c_bool
    return loaded if loaded.attention_available() else None


def attention_for(dtype: torch.dtype, head_size: int) -> Attend:
    """Return the fastest attention for heads of this size and type on this processor."""
    fits = dtype == torch.bfloat16 and head_size == HEAD_SIZE
    return fused_attend if fits and library() is not None else attend


def _rows(groups: Sequence[RowGroup]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([g.length for g in groups for _ in range(g.num_rows)])
    return lengths.cumsum(0) - lengths, lengths


def _call(function: Any, tensors: Sequence[Tensor], num_rows: int, num_kv: int) -> None:
    num_tokens, num_heads, _ = tensors[0].shape
    sizes = (num_rows, num_tokens, num_heads, num_kv)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    function(*pointers, *[ctypes.c_int64(size) for size in sizes])


class _FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q_NHE: Tensor, k_NKE: Tensor, v_NKE: Tensor, groups: Sequence[RowGroup]
    ) -> Tensor:
        kernel, (starts, lengths) = library(), _rows(groups)
        assert kernel is not None
        q, k, v = (x.contiguous() for x in (q_NHE, k_NKE, v_NKE))
        output_NHE, log_sums_HN = torch.empty_like(q), torch.empty(q.shape[1], q.shape[0])
        tensors = (q, k, v, output_NHE, log_sums_HN, starts, lengths)
        _call(kernel.attention_forward, tensors, len(lengths), k.shape[1])
        ctx.save_for_backward(q, k, v, output_NHE, log_sums_HN, starts, lengths)
        return output_NHE

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        kernel = library()
        assert kernel is not None
        q, k, v, output_NHE, log_sums_HN, starts, lengths = ctx.saved_tensors
        results = tuple(torch.empty_like(x) for x in (q, k, v))
        dy_NHE = gradients[0].contiguous()
        tensors = (q, k, v, output_NHE, log_sums_HN, dy_NHE, *results, starts, lengths)
        _call(kernel.attention_backward, tensors, len(lengths), k.shape[1])
        return (*results, None)


def fused_attend(q_NHE: Tensor, k_NKE: Tensor, v_NKE: Tensor, groups: Sequence[RowGroup]) -> Tensor:
    """Causal attention in bf16 inside every row of every group, of a multiple of 16 tokens; returns
    ``[N, H * E]``."""
    output: Tensor = _FusedAttention.apply(q_NHE, k_NKE, v_NKE, groups)  # type: ignore[no-untyped-call]
    return output.flatten(1)
