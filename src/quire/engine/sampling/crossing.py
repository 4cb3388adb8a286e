"""Finds where the cumulative mass of ranked candidates reaches a limit, without ranking all of
them.

Shapes: S rows, C candidates per row, B buckets, N candidates in the bucket that contains the limit.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NUM_BUCKETS = 2048
_BUCKETS_PER_UNIT = 64.0
"""Keys are logarithms of probabilities: tokens beyond 2048 / 64 = 32 units have no mass."""

_SMALL = 1024
"""Up to this number of candidates, sorting is fastest."""


def crossing(keys_SC: Tensor, masses_SC: Tensor, limits_S1: Tensor) -> tuple[Tensor, Tensor]:
    """In ascending order of (key, column), the first candidate at which the cumulative mass reaches
    the limit: its column ``[S, 1]``, and whether there is one ``[S, 1]``.

    Masses are integers, so sums are exact. Rows with NaN return an arbitrary column.
    """
    if keys_SC.device.type != "cpu" or keys_SC.shape[1] <= _SMALL:
        # on other devices sorting is fast, and reading counts would make the host wait
        ordered_SC, columns_SC = keys_SC.sort(dim=-1, stable=True)
        del ordered_SC
        reached_SC = masses_SC.gather(1, columns_SC).cumsum(dim=-1, dtype=torch.float64)
        rank_S1 = (reached_SC < limits_S1).sum(dim=-1, keepdim=True)
        exists_S1 = rank_S1 < keys_SC.shape[1]
        return columns_SC.gather(1, rank_S1.clamp_(max=keys_SC.shape[1] - 1)), exists_S1
    return _by_buckets(keys_SC, masses_SC, limits_S1)


def _by_buckets(keys_SC: Tensor, masses_SC: Tensor, limits_S1: Tensor) -> tuple[Tensor, Tensor]:
    """Sum masses per bucket of keys, then rank the candidates of one bucket only."""
    num_rows = len(keys_SC)
    buckets_SC = _buckets(keys_SC)
    first_S1 = torch.arange(num_rows)[:, None] * _NUM_BUCKETS
    reached_SB = (
        torch.bincount(
            (buckets_SC + first_S1).view(-1),
            masses_SC.double().view(-1),
            minlength=num_rows * _NUM_BUCKETS,
        )
        .view(num_rows, _NUM_BUCKETS)
        .cumsum(dim=-1)
    )
    bucket_S1 = (reached_SB < limits_S1).sum(dim=-1, keepdim=True)
    exists_S1 = bucket_S1 < _NUM_BUCKETS
    bucket_S1 = bucket_S1.clamp_(max=_NUM_BUCKETS - 1)
    before_S1 = torch.where(bucket_S1 > 0, reached_SB.gather(1, (bucket_S1 - 1).clamp_(min=0)), 0.0)
    rows_I, columns_I = (buckets_SC == bucket_S1).nonzero(as_tuple=True)
    counts_S = torch.bincount(rows_I, minlength=num_rows)
    places_I = torch.arange(len(rows_I)) - (counts_S.cumsum(0) - counts_S)[rows_I]
    shape = (num_rows, max(1, int(counts_S.max())))
    keys_SN = keys_SC.new_full(shape, torch.inf)
    inside_SN = torch.zeros(shape, dtype=torch.float64)
    columns_SN = torch.zeros(shape, dtype=torch.int64)
    keys_SN[rows_I, places_I] = keys_SC[rows_I, columns_I]
    inside_SN[rows_I, places_I] = masses_SC[rows_I, columns_I].double()
    columns_SN[rows_I, places_I] = columns_I
    order_SN = keys_SN.argsort(dim=-1, stable=True)
    reached_SN = inside_SN.gather(1, order_SN).cumsum(dim=-1) + before_S1
    rank_S1 = (reached_SN < limits_S1).sum(dim=-1, keepdim=True).clamp_(max=shape[1] - 1)
    return columns_SN.gather(1, order_SN.gather(1, rank_S1)), exists_S1


def _buckets(keys_SC: Tensor) -> Tensor:
    """The bucket of each key, non-decreasing in the key."""
    distance_SC = keys_SC - keys_SC.amin(dim=-1, keepdim=True)
    distance_SC.mul_(_BUCKETS_PER_UNIT).clamp_(max=_NUM_BUCKETS - 1)
    return distance_SC.nan_to_num_(0.0).to(torch.int64)
