"""Attention by FlashInfer: plans its wrappers for a step and runs them in every layer.

A wrapper is planned on the host when a layer first needs its kind of attention: once per step and
kind, never once per layer. Each wrapper has its own plan memory; they share the workspace for
partial results, because they run one after another. Wrappers are reused in the next step, which
begins after the device has finished this one (the engine waits for it), so neither a plan in use
nor the pinned memory that it is copied from is overwritten.

Shapes: T new tokens, N heads, K KV heads, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.engine.attention.backend import AttentionAttributes, AttentionRows
from quire.engine.cuda.cascade import Levels, find_shared
from quire.engine.cuda.flashinfer_plan import RequestSegment, SlotsByRow, segments, visible_keys
from quire.engine.cuda.kv_pool import paged
from quire.engine.cuda.optional import load_flashinfer
from quire.engine.cuda.page_entries import PageEntries
from quire.engine.kv_cache.torch_pool import LayerCache

I64 = NDArray[np.int64]

HEAD_SIZES = (64, 128, 256)
DTYPES = (torch.bfloat16, torch.float16)
_WORKSPACE_BYTES = 256 << 20
_LAYOUT = "NHD"


class FlashInfer:
    """The library with one workspace, for one model's heads."""

    def __init__(
        self, num_heads: int, num_kv_heads: int, head_dim: int, device: torch.device
    ) -> None:
        self.library: Any = load_flashinfer()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.device = device
        self._workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._prefills: dict[tuple[bool, int], Any] = {}
        self._cascade: Any = None

    def try_out(self, kinds: Sequence[AttentionAttributes], dtype: torch.dtype) -> None:
        """Run each kernel once, with and without a mask, so that missing ones get compiled.

        Raises:
            Exception: any error of the library or its compiler.
        """
        shape = (2, 1, self.num_kv_heads, self.head_dim)
        pages = torch.zeros(shape, dtype=dtype, device=self.device)
        q_TND = torch.zeros(2, self.num_heads, self.head_dim, dtype=dtype, device=self.device)
        for attributes in kinds:
            for mask in (None, np.tri(2, dtype=np.bool_).reshape(-1)):
                wrapper = self.prefill(_two_tokens(mask), attributes, dtype, 0)
                wrapper.run(q_TND, (pages, pages))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def prefill(
        self,
        segment: RequestSegment,
        attributes: AttentionAttributes,
        dtype: torch.dtype,
        number: int,
    ) -> Any:
        """Wrapper ``number`` of a step, planned for the requests of a segment.

        A wrapper selects one of the library's kernels in its first plan, and some kernels take no
        masks, so separate wrappers serve segments with masks. With a mask the library needs all
        lists on the device.
        """
        is_masked = segment.mask is not None
        if (is_masked, number) not in self._prefills:
            self._prefills[is_masked, number] = self.library.BatchPrefillWithPagedKVCacheWrapper(
                self._workspace, _LAYOUT
            )
        wrapper = self._prefills[is_masked, number]
        lists_on = self.device if is_masked else torch.device("cpu")
        wrapper.plan(
            torch.from_numpy(segment.qo_indptr).to(lists_on),
            torch.from_numpy(segment.kv_indptr).to(lists_on),
            self.on_device(segment.kv_indices),
            torch.from_numpy(segment.last_page_len).to(lists_on),
            self.num_heads,
            self.num_kv_heads,
            self.head_dim,
            segment.page_size,
            custom_mask=None if segment.mask is None else self.on_device(segment.mask),
            causal=not is_masked,
            sm_scale=attributes.scale,
            window_left=_window_left(segment, attributes),
            logits_soft_cap=attributes.softcap,
            q_data_type=dtype,
            kv_data_type=dtype,
        )
        return wrapper

    def on_device(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def cascade(self, levels: Levels, attributes: AttentionAttributes, dtype: torch.dtype) -> Any:
        """A planned wrapper for rows that share pages."""
        if self._cascade is None:
            self._cascade = self.library.MultiLevelCascadeAttentionWrapper(
                2, self._workspace, _LAYOUT
            )
        wrapper = self._cascade
        both = (levels.shared, levels.own)
        wrapper.plan(
            [self.on_device(one.qo_indptr) for one in both],
            [self.on_device(one.kv_indptr) for one in both],
            [self.on_device(one.kv_indices) for one in both],
            [self.on_device(one.last_page_len) for one in both],
            self.num_heads,
            self.num_kv_heads,
            self.head_dim,
            levels.own.page_size,
            sm_scale=attributes.scale,
            logits_soft_cap=attributes.softcap,
            q_data_type=dtype,
            kv_data_type=dtype,
        )
        return wrapper


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """A planned wrapper and the tokens that it serves; ``page_size`` of its view of the cache.
    ``blind`` tokens see nothing."""

    wrapper: Any
    tokens: Tensor
    blind: Tensor | None
    page_size: int


class FlashInferPlan:
    """``AttentionPlan`` of the rows ``members`` of a step; writes only their tokens' output."""

    def __init__(
        self, library: FlashInfer, rows: AttentionRows, entries: PageEntries, members: I64
    ) -> None:
        self._library, self._rows, self._entries = library, rows, entries
        self._members = members
        self._keys: SlotsByRow = visible_keys(rows, entries, members)
        self._calls: dict[tuple[object, ...], list[_Call]] = {}
        self._num_wrappers = 0

    def attend_into(
        self, q_TND: Tensor, cache: LayerCache, attributes: AttentionAttributes, out_TND: Tensor
    ) -> None:
        """Write the output ``[T, N, D]`` of the members' tokens."""
        asked = (attributes.scale, attributes.window, attributes.softcap)
        if asked not in self._calls:
            self._calls[asked] = self._make_calls(attributes, q_TND.dtype)
        for call in self._calls[asked]:
            pages = paged(cache, call.page_size)
            q = q_TND.index_select(0, call.tokens)
            if attributes.sinks_N is None:
                out = call.wrapper.run(q, pages)
            else:
                out, lse = call.wrapper.run(q, pages, return_lse=True)
                out = with_sinks(out, lse, attributes.sinks_N)
            if call.blind is not None:
                out = out.index_fill(0, call.blind, 0.0)
            out_TND.index_copy_(0, call.tokens, out)

    def _make_calls(self, attributes: AttentionAttributes, dtype: torch.dtype) -> list[_Call]:
        calls: list[_Call] = []
        for segment in segments(
            self._rows, self._entries, self._keys, self._members, attributes.window
        ):
            rest: RequestSegment | None = segment
            levels = find_shared(segment) if _may_cascade(segment, attributes) else None
            if levels is not None:
                wrapper = self._library.cascade(levels, attributes, dtype)
                calls.append(self._call(wrapper, levels.tokens, segment))
                rest = levels.rest
            if rest is not None:
                wrapper = self._library.prefill(rest, attributes, dtype, self._num_wrappers)
                self._num_wrappers += 1
                calls.append(self._call(wrapper, rest.tokens, segment))
        return calls

    def _call(self, wrapper: Any, tokens: I64, segment: RequestSegment) -> _Call:
        on_device = self._library.on_device
        blind = on_device(segment.blind) if len(segment.blind) else None
        return _Call(wrapper, on_device(tokens), blind, segment.page_size)


def _two_tokens(mask: NDArray[np.bool_] | None) -> RequestSegment:
    """One request of two new tokens, in pages of one slot."""
    return RequestSegment(
        tokens=np.arange(2),
        qo_indptr=np.array([0, 2], np.int32),
        kv_indptr=np.array([0, 2], np.int32),
        kv_indices=np.array([0, 1], np.int32),
        last_page_len=np.array([1], np.int32),
        page_size=1,
        mask=mask,
    )


def with_sinks(out_TND: Tensor, lse_TN: Tensor, sinks_N: Tensor) -> Tensor:
    """The output with one more logit per head, without a value, in its softmax. ``lse_TN``:
    logarithm to base 2 of the sum of the other exponentials, as FlashInfer returns it."""
    gap_TN = sinks_N.float() - lse_TN * math.log(2.0)
    share_TN = torch.sigmoid(-gap_TN)
    return (out_TND.float() * share_TN[..., None]).to(out_TND.dtype)


def _may_cascade(segment: RequestSegment, attributes: AttentionAttributes) -> bool:
    """FlashInfer's cascade wrapper supports no masks, no windows by row, and no sums for sinks."""
    one_each = len(segment.tokens) == len(segment.qo_indptr) - 1
    plain = attributes.window is None and attributes.sinks_N is None
    return one_each and plain and segment.mask is None


def _window_left(segment: RequestSegment, attributes: AttentionAttributes) -> int:
    """The number of keys before a query's own that it sees; -1 for all. A mask includes the
    window."""
    if attributes.window is None or segment.mask is not None:
        return -1
    return attributes.window - 1
