"""FlashInfer's documented semantics in plain PyTorch, one request after another.

Only the part that the backend uses, with the library's names and argument order. A request's keys
are its pages in order, all full except the last. Without a mask, the query with index i of n sees
the keys up to index ``num_keys - n + i``, and with ``window_left`` w those from w before that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Pages = tuple[Tensor, Tensor]


@dataclass
class Request:
    queries: slice
    pages: Tensor
    num_keys: int
    shown: Tensor


def requests(
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    last_page_len: Tensor,
    page_size: int,
    *,
    mask: Tensor | None,
    causal: bool,
    window_left: int,
) -> list[Request]:
    assert all(t.dtype == torch.int32 for t in (qo_indptr, kv_indptr, kv_indices, last_page_len))
    assert len(qo_indptr) == len(kv_indptr) == len(last_page_len) + 1
    assert int(kv_indptr[-1]) == len(kv_indices)
    assert bool(((last_page_len >= 1) & (last_page_len <= page_size)).all())
    found, used = [], 0
    for i in range(len(last_page_len)):
        first, last = int(qo_indptr[i]), int(qo_indptr[i + 1])
        pages = kv_indices[int(kv_indptr[i]) : int(kv_indptr[i + 1])].long()
        assert len(pages), "a request without keys"
        num_new, num_keys = last - first, (len(pages) - 1) * page_size + int(last_page_len[i])
        place = torch.arange(num_keys)
        own = num_keys - num_new + torch.arange(num_new)[:, None]
        shown = torch.ones(num_new, num_keys, dtype=torch.bool)
        if mask is not None:
            shown = mask[used : used + num_new * num_keys].view(num_new, num_keys)
            used += num_new * num_keys
        elif causal:
            shown = place <= own
        if window_left >= 0:
            shown = shown & (place >= own - window_left)
        found.append(Request(slice(first, last), pages, num_keys, shown))
    assert mask is None or used == len(mask)
    return found


def attend(
    found: Sequence[Request], q: Tensor, pages: Pages, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Output and base-2 logarithm of the sum of exponentials. For a query that sees nothing the
    output is NaN (the library leaves it undefined)."""
    out, lse = torch.full_like(q, math.nan), torch.full(q.shape[:2], math.nan)
    for one in found:
        keys, values = (
            part[one.pages]
            .flatten(0, 1)[: one.num_keys]
            .repeat_interleave(q.shape[1] // part.shape[2], dim=1)
            for part in pages
        )
        scores = torch.einsum("qnd,knd->nqk", q[one.queries], keys) * scale
        if softcap:
            scores = softcap * (scores / softcap).tanh()
        scores = scores.masked_fill(~one.shown, -math.inf)
        out[one.queries] = torch.einsum("nqk,knd->qnd", scores.softmax(-1), values)
        lse[one.queries] = scores.logsumexp(-1).T / math.log(2)
    return out, lse


class BatchPrefillWithPagedKVCacheWrapper:
    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert kv_layout == "NHD"

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        custom_mask: Tensor | None,
        causal: bool,
        sm_scale: float,
        window_left: int,
        logits_soft_cap: float | None,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        assert custom_mask is None or not causal
        self.heads = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
        self.requests = requests(
            qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size,
            mask=custom_mask, causal=causal, window_left=window_left,
        )  # fmt: skip
        self.scale, self.softcap = sm_scale, logits_soft_cap

    def run(self, q: Tensor, pages: Pages, return_lse: bool = False) -> object:
        keys = pages[0]
        assert self.heads == (q.shape[1], keys.shape[2], keys.shape[3], keys.shape[1])
        out, lse = attend(self.requests, q, pages, self.scale, self.softcap)
        return (out, lse) if return_lse else out


class MultiLevelCascadeAttentionWrapper:
    def __init__(self, num_levels: int, workspace: Tensor, kv_layout: str = "NHD") -> None:
        self.num_levels = num_levels

    def plan(
        self,
        qo_indptr_arr: list[Tensor],
        paged_kv_indptr_arr: list[Tensor],
        paged_kv_indices_arr: list[Tensor],
        paged_kv_last_page_len: list[Tensor],
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        sm_scale: float,
        logits_soft_cap: float | None,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        arrays = zip(
            qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len,
            strict=True,
        )  # fmt: skip
        self.levels = [
            requests(*level, page_size, mask=None, causal=False, window_left=-1) for level in arrays
        ]
        assert len(self.levels) == self.num_levels
        self.scale, self.softcap = sm_scale, logits_soft_cap

    def run(self, q: Tensor, pages: Pages) -> Tensor:
        parts = [attend(level, q, pages, self.scale, self.softcap) for level in self.levels]
        weights = torch.stack([lse for _, lse in parts]).mul(math.log(2)).softmax(0)
        return sum(
            (weight[..., None] * out for weight, (out, _) in zip(weights, parts, strict=True)),
            torch.zeros_like(q),
        )
