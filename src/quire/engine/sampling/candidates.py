"""The tokens still in play for a group of rows, and the final choice among them.

Shapes: S rows, V vocabulary, C candidates per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

_BLOCK = 128


@dataclass(slots=True)
class Candidates:
    """``scores_SC`` in float32, ``-inf`` for what is excluded.

    ``ids_SC`` is None while the candidates are the whole vocabulary in order (C = V); a top-k cuts
    them down, so that what follows costs k and not V.
    """

    scores_SC: Tensor
    ids_SC: Tensor | None = None

    def of_vocabulary(self, values_SV: Tensor) -> Tensor:
        """Per-token values of the whole vocabulary, for these candidates ``[S, C]``."""
        return values_SV if self.ids_SC is None else values_SV.gather(1, self.ids_SC)

    def best_first(self) -> None:
        """Sort each row by score, ties by lower id."""
        self.in_id_order()
        self.scores_SC, order = self.scores_SC.sort(dim=-1, descending=True, stable=True)
        self.ids_SC = order if self.ids_SC is None else self.ids_SC.gather(1, order)

    def keep_best(self, k: int) -> None:
        """Keep the ``k`` best of each row, best first, ties by lower id."""
        if k >= self.scores_SC.shape[1]:
            self.best_first()
            return
        self.in_id_order()
        scores, columns = top_k(self.scores_SC, k)
        self.scores_SC = scores
        self.ids_SC = columns if self.ids_SC is None else self.ids_SC.gather(1, columns)

    def in_id_order(self) -> None:
        if self.ids_SC is not None:
            self.ids_SC, order = self.ids_SC.sort(dim=-1)
            self.scores_SC = self.scores_SC.gather(1, order)

    def choose_best(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The best token of each row, and whether there was one."""
        self.in_id_order()
        if self.scores_SC.device.type == "cpu":
            # numpy finds the first maximum ten times as fast as torch does here
            column_S = torch.from_numpy(self.scores_SC.numpy().argmax(axis=1))
        else:
            column_S = self.scores_SC.argmax(dim=-1)
        best_S = self.scores_SC.gather(1, column_S[:, None])[:, 0]
        return self._ids_at(column_S), torch.isfinite(best_S).cpu().numpy()

    def draw(self, uniforms_S: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """A token of each row by inversion of its distribution in id order, and whether any could
        be drawn."""
        self.in_id_order()
        probs_SC = self.scores_SC.softmax(dim=-1)
        column_S = invert_distribution(probs_SC, torch.from_numpy(uniforms_S).to(probs_SC.device))
        return self._ids_at(column_S), torch.isfinite(probs_SC[:, 0]).cpu().numpy()

    def _ids_at(self, column_S: Tensor) -> NDArray[np.int64]:
        if self.ids_SC is not None:
            column_S = self.ids_SC.gather(1, column_S[:, None])[:, 0]
        ids: NDArray[np.int64] = column_S.cpu().numpy()
        return ids


def top_k(values_SV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest of each row, best first, ties by lower index (``torch.topk`` leaves the
    order of ties open)."""
    values_SK, columns_SK = values_SV.topk(k, dim=-1)
    worst_S1 = values_SK[:, -1:]
    if bool(((values_SV >= worst_S1).sum(dim=-1) > k).any()):
        values_SV, columns_SV = values_SV.sort(dim=-1, descending=True, stable=True)
        return values_SV[:, :k], columns_SV[:, :k]
    columns_SK, order = columns_SK.sort(dim=-1)
    values_SK, order = values_SK.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values_SK, columns_SK.gather(1, order)


def invert_distribution(probs_SC: Tensor, uniforms_S: Tensor) -> Tensor:
    """The column of each row at which the cumulated probability passes ``uniforms_S``.

    In two levels, blocks and then columns: cumulating a whole vocabulary would cost more than a
    decode step. Columns of probability zero are never chosen. Rows that are not numbers give
    some column.
    """
    num_rows, num_columns = probs_SC.shape
    blocks_SBW = F.pad(probs_SC, (0, -num_columns % _BLOCK)).view(num_rows, -1, _BLOCK)
    sums_SB = blocks_SBW.sum(dim=-1, dtype=torch.float64)
    edges_SB = sums_SB.cumsum(dim=-1)
    target_S1 = _below(uniforms_S[:, None] * edges_SB[:, -1:], edges_SB[:, -1:])
    block_S1 = torch.searchsorted(edges_SB, target_S1, right=True).clamp_(max=edges_SB.shape[1] - 1)
    target_S1 = target_S1 - (edges_SB.gather(1, block_S1) - sums_SB.gather(1, block_S1))
    rows_S = torch.arange(num_rows, device=probs_SC.device)
    inside_SW = blocks_SBW[rows_S, block_S1[:, 0]].cumsum(dim=-1, dtype=torch.float64)
    target_S1 = _below(target_S1, inside_SW[:, -1:])
    column_S = torch.searchsorted(inside_SW, target_S1, right=True)[:, 0]
    return (block_S1[:, 0] * _BLOCK + column_S).clamp_(max=num_columns - 1)


def _below(values: Tensor, bound: Tensor) -> Tensor:
    """``values``, strictly below ``bound`` and not negative: products round up."""
    return values.minimum(torch.nextafter(bound, torch.zeros_like(bound))).clamp_(min=0.0)
