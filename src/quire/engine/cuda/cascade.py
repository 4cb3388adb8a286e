"""Decode rows with a common prefix: its keys are read once for all of them (Ye et al., 2024).

Pure numpy. Finds the groups and lays them out as two levels of requests: the shared pages with all
queries of a group, and each row's own pages with its one query.

Shapes: R rows, P pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import I32
from quire.engine.cuda.flashinfer_plan import RequestSegment

I64 = NDArray[np.int64]

LEAST_SAVED_SLOTS = 4096
"""Below this, merging two partial results costs more than the saved reads."""

LEAST_SAVED_SHARE = 0.5
"""The least share that must be saved of the slots that the rows of a group would read."""


@dataclass(frozen=True, slots=True)
class Levels:
    """Both levels of the sharing rows, and the other rows unchanged (None: there are none).

    ``tokens``: indices of the sharing rows' tokens, group by group; the levels are in that order.
    """

    tokens: I64
    shared: RequestSegment
    own: RequestSegment
    rest: RequestSegment | None


def find_shared(segment: RequestSegment) -> Levels | None:
    """The levels of a segment with one query per request; None if no group is worth it.

    A group is worth it if reading its shared pages once saves at least ``LEAST_SAVED_SLOTS`` slots
    and ``LEAST_SAVED_SHARE`` of all that its rows read. The last page of a row is never shared,
    because its own token is in it.
    """
    groups = _groups(segment)
    if not groups:
        return None
    sharing = np.concatenate([rows for rows, _ in groups])
    num_shared = np.concatenate([np.full(len(rows), pages) for rows, pages in groups])
    rest = np.setdiff1d(np.arange(len(segment.tokens)), sharing)
    leaders = [int(rows[0]) for rows, _ in groups]
    page_counts = np.array([pages for _, pages in groups])
    shared = RequestSegment(
        tokens=segment.tokens[sharing],
        qo_indptr=_indptr([len(rows) for rows, _ in groups]),
        kv_indptr=_indptr(page_counts),
        kv_indices=_pages(segment, np.array(leaders), np.zeros(len(groups), np.int64), page_counts),
        last_page_len=np.full(len(groups), segment.page_size, np.int32),
        page_size=segment.page_size,
    )
    own = _select(segment, sharing, num_shared)
    left = _select(segment, rest, np.zeros(len(rest), np.int64)) if len(rest) else None
    return Levels(segment.tokens[sharing], shared, own, left)


def _groups(segment: RequestSegment) -> list[tuple[I64, int]]:
    """(rows, length of their common prefix in pages) of the groups that are worth it.

    Rows are grouped by their first page; the common prefix is that of all rows of the group.
    """
    counts = np.diff(segment.kv_indptr)
    candidates = np.flatnonzero(counts > 1)
    first = segment.kv_indices[segment.kv_indptr[:-1][candidates]]
    found = []
    for block in np.unique(first[_repeated(first)]):
        rows = candidates[first == block]
        width = int(counts[rows].min()) - 1
        pages_RP = segment.kv_indices[segment.kv_indptr[rows][:, None] + np.arange(width)]
        same = (pages_RP == pages_RP[0]).all(axis=0)
        num_shared = width if same.all() else int(same.argmin())
        saved = (len(rows) - 1) * num_shared * segment.page_size
        read = int(counts[rows].sum()) * segment.page_size
        if saved >= max(LEAST_SAVED_SLOTS, LEAST_SAVED_SHARE * read):
            found.append((rows, num_shared))
    return found


def _repeated(values: I32) -> NDArray[np.bool_]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    repeated: NDArray[np.bool_] = counts[inverse] > 1
    return repeated


def _select(segment: RequestSegment, rows: I64, skipped: I64) -> RequestSegment:
    """These requests without their first ``skipped`` pages."""
    counts = np.diff(segment.kv_indptr)[rows] - skipped
    return RequestSegment(
        tokens=segment.tokens[rows],
        qo_indptr=np.arange(len(rows) + 1, dtype=np.int32),
        kv_indptr=_indptr(counts),
        kv_indices=_pages(segment, rows, skipped, counts),
        last_page_len=segment.last_page_len[rows],
        page_size=segment.page_size,
    )


def _pages(segment: RequestSegment, rows: I64, skipped: I64, counts: I64) -> I32:
    begins = np.cumsum(counts) - counts
    starts = segment.kv_indptr[rows] + skipped
    return segment.kv_indices[np.repeat(starts - begins, counts) + np.arange(int(counts.sum()))]


def _indptr(counts: NDArray[np.integer] | list[int]) -> I32:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
