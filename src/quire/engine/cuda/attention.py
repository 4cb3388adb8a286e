"""A CUDA device's attention: FlashInfer where it is installed and applies, else Triton.

Owns the division of rows between the two. FlashInfer takes prompt chunks, and single tokens where
enough rows share a prefix for cascade attention to pay off. Its plan costs host time for every key
of its rows, which overlaps with the computation of a chunk. Other single tokens go to the Triton
kernel, which plans from page tables alone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.engine.attention.backend import AttentionAttributes, AttentionRows
from quire.engine.cuda.cascade import LEAST_SAVED_SLOTS
from quire.engine.cuda.flashinfer_attention import DTYPES, HEAD_SIZES, FlashInfer, FlashInferPlan
from quire.engine.cuda.optional import flashinfer_missing
from quire.engine.cuda.page_entries import page_entries
from quire.engine.cuda.triton_attention import TritonAttention, TritonDecodePlan, TritonPlan
from quire.engine.kv_cache.torch_pool import LayerCache
from quire.engine.models.decoder_config import DecoderConfig

I64 = NDArray[np.int64]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CudaAttention:
    """``AttentionBackend``. ``flashinfer`` is None where the Triton kernel serves every row."""

    triton: TritonAttention
    flashinfer: FlashInfer | None

    @property
    def name(self) -> str:
        return "triton" if self.flashinfer is None else "flashinfer"

    @classmethod
    def choose(
        cls, triton: TritonAttention, config: DecoderConfig, dtype: torch.dtype
    ) -> CudaAttention:
        """Includes FlashInfer if it is installed, supports these heads and this dtype, and runs."""
        reason = flashinfer_missing()
        if triton.batch_invariant:
            reason = "its split of long rows depends on the batch, and batch_invariant is set"
        elif config.head_dim not in HEAD_SIZES:
            reason = f"heads have {config.head_dim} elements, it serves {HEAD_SIZES}"
        elif dtype not in DTYPES:
            reason = f"the model runs in {dtype}, it serves {DTYPES}"
        if reason is not None:
            logger.info("attention by the Triton kernels alone: %s", reason)
            return cls(triton, None)
        library = FlashInfer(config.num_heads, config.num_kv_heads, config.head_dim, triton.device)
        logger.info("FlashInfer loads its kernels and compiles missing ones")
        try:
            library.try_out(_kinds(config), dtype)
        except Exception as exc:  # compilers, disks and drivers raise different types
            logger.warning(
                "attention by the Triton kernels alone: FlashInfer %s cannot run here (%s): "
                "install a CUDA toolkit with nvcc, or its flashinfer-jit-cache of that version",
                getattr(library.library, "__version__", "of unknown version"),
                f"{type(exc).__name__}: {exc}"[:500],
            )
            return cls(triton, None)
        return cls(triton, library)

    def plan(self, rows: AttentionRows) -> TritonPlan | MixedPlan:
        if self.flashinfer is None:
            return self.triton.plan(rows)
        return MixedPlan(self.triton, self.flashinfer, rows)

    def plan_decode(self, rows: AttentionRows, num_steps: int) -> TritonDecodePlan:
        return self.triton.plan_decode(rows, num_steps)


class MixedPlan:
    """``AttentionPlan`` of a step whose rows are divided between both."""

    def __init__(
        self, triton: TritonAttention, flashinfer: FlashInfer, rows: AttentionRows
    ) -> None:
        entries = page_entries(rows)
        single = np.diff(rows.row_starts) == 1
        to_triton = np.flatnonzero(single & ~_may_share(rows, single))
        to_flashinfer = np.setdiff1d(np.arange(rows.num_rows), to_triton)
        self._triton = TritonPlan(triton, rows, entries, to_triton)
        self._flashinfer = (
            FlashInferPlan(flashinfer, rows, entries, to_flashinfer) if len(to_flashinfer) else None
        )

    def attend(self, q_TND: Tensor, cache: LayerCache, attributes: AttentionAttributes) -> Tensor:
        out_TND = torch.zeros_like(q_TND, memory_format=torch.contiguous_format)
        self._triton.attend_into(q_TND, cache, attributes, out_TND)
        if self._flashinfer is not None:
            self._flashinfer.attend_into(q_TND, cache, attributes, out_TND)
        return out_TND.flatten(1)


def _kinds(config: DecoderConfig) -> list[AttentionAttributes]:
    """The distinct attention parameters of the layers."""
    windows = dict.fromkeys(layer.window for layer in config.layers)
    attention = config.attention
    return [AttentionAttributes(attention.scale, window, attention.softcap) for window in windows]


def _may_share(rows: AttentionRows, single: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows of one token whose first page is shared by enough rows that cascade attention may pay
    off."""
    pages = rows.pages
    counts = np.diff(pages.starts)
    first_R = np.full(rows.num_rows, -1, np.int64)
    held = single & (counts > 1)
    first_R[held] = pages.blocks[pages.starts[:-1][held]]
    _, inverse, sizes = np.unique(first_R, return_inverse=True, return_counts=True)
    most_saved = (sizes[inverse] - 1) * counts * rows.page_size
    may_share: NDArray[np.bool_] = held & (most_saved >= LEAST_SAVED_SLOTS)
    return may_share
