"""The remaining candidate tokens of a group of rows, and the final choice among them.

Shapes: S rows, V vocabulary, C candidates per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.engine.sampling import mass
from quire.engine.sampling.selection import top_k

GUESS = 256
"""Best tokens that are tried first, before the whole vocabulary is processed."""

_BLOCK = 128


class Candidates:
    """``scores_SC`` in float32, ``-inf`` for excluded tokens.

    ``ids_SC`` is None while the candidates are the whole vocabulary in order (C = V); a top-k
    reduces them, so that later processors cost k and not V. The initial logits belong to the caller
    and are copied before the first write.
    """

    __slots__ = ("_is_own", "_masses_SC", "ids_SC", "scores_SC", "vocab_size")

    def __init__(self, scores_SV: Tensor) -> None:
        self.scores_SC = scores_SV
        self.ids_SC: Tensor | None = None
        self.vocab_size = scores_SV.shape[1]
        self._masses_SC: Tensor | None = None
        self._is_own = False

    def rescore(self, scores_SC: Tensor) -> None:
        """Replace the scores of the same candidates, in a new tensor."""
        self.scores_SC = scores_SC
        self._masses_SC = None
        self._is_own = True

    def edit(self, change: Callable[[Tensor], object]) -> None:
        """Let ``change`` write to the scores of the vocabulary ``[S, V]`` in place."""
        if self.ids_SC is not None:
            scores_SV = self.over_vocabulary()
            change(scores_SV)
            self.rescore(scores_SV.gather(1, self.ids_SC))
            return
        if not self._is_own:
            self.rescore(self.scores_SC.clone())
        change(self.scores_SC)
        self._masses_SC = None

    def exclude(self, excluded_SC: Tensor) -> None:
        """Exclude candidates. The best one of a row must remain, because masses are relative to
        it."""
        self.scores_SC = self.scores_SC.masked_fill(excluded_SC, -math.inf)
        self._is_own = True
        if self._masses_SC is not None:
            self._masses_SC = self._masses_SC.masked_fill(excluded_SC, 0.0)

    def masses(self) -> Tensor:
        """Integer masses ``[S, C]`` (see ``mass``)."""
        if self._masses_SC is None:
            self._masses_SC = mass.masses(self.scores_SC)
        return self._masses_SC

    @property
    def are_many(self) -> bool:
        """Whether trying only the best ``GUESS`` first may save work. Not on a device, where
        checking the guess would make the host wait."""
        return self.scores_SC.device.type == "cpu" and self.scores_SC.shape[1] > 4 * GUESS

    def keep_best(self, k: int) -> None:
        """Keep the ``k`` best of each row, best first, ties by lower id."""
        self.in_id_order()
        _, columns_SK = top_k(self.scores_SC, min(k, self.scores_SC.shape[1]))
        self.take(columns_SK)

    def in_id_order(self) -> None:
        """Order the candidates of each row by id."""
        if self.ids_SC is not None:
            self.take(self.ids_SC.argsort(dim=-1))

    def over_vocabulary(self) -> Tensor:
        """Scores of all tokens ``[S, V]``, ``-inf`` for tokens that are not candidates."""
        if self.ids_SC is None:
            return self.scores_SC
        full = self.scores_SC.new_full((len(self.scores_SC), self.vocab_size), -math.inf)
        return full.scatter_(1, self.ids_SC, self.scores_SC)

    def replace_all(self, scores_SV: Tensor) -> None:
        """Set the score of every token of the vocabulary; all are candidates again."""
        self.ids_SC = None
        self.rescore(scores_SV)

    def choose_best(self) -> tuple[Tensor, Tensor]:
        """The best token of each row ``[S]``, and whether there was one."""
        self.in_id_order()
        if self.scores_SC.device.type == "cpu":
            # numpy finds the first maximum ten times as fast as torch
            column_S = torch.from_numpy(self.scores_SC.numpy().argmax(axis=1))
        else:
            column_S = self.scores_SC.argmax(dim=-1)
        best_S = self.scores_SC.gather(1, column_S[:, None])[:, 0]
        return self._ids_at(column_S), torch.isfinite(best_S)

    def draw(self, uniforms_S: Tensor) -> tuple[Tensor, Tensor]:
        """A token of each row ``[S]`` by inversion of its distribution in id order, and whether one
        could be drawn. ``uniforms_S`` in float64."""
        self.in_id_order()
        num_rows = len(self.scores_SC)
        rows = mass.rows_at_a_time(self.scores_SC)
        if rows >= num_rows or self._masses_SC is not None:
            column_S, total_S = invert(self.masses(), uniforms_S)
        else:
            parts = [slice(start, start + rows) for start in range(0, num_rows, rows)]
            drawn = [invert(mass.masses(self.scores_SC[p]), uniforms_S[p]) for p in parts]
            column_S = torch.cat([columns for columns, _ in drawn])
            total_S = torch.cat([totals for _, totals in drawn])
        return self._ids_at(column_S), torch.isfinite(total_S)

    def take(self, columns_SK: Tensor) -> None:
        """Keep the candidates in these columns, in this order."""
        self.scores_SC = self.scores_SC.gather(1, columns_SK)
        self._is_own = True
        if self._masses_SC is not None:
            self._masses_SC = self._masses_SC.gather(1, columns_SK)
        self.ids_SC = columns_SK if self.ids_SC is None else self.ids_SC.gather(1, columns_SK)

    def _ids_at(self, column_S: Tensor) -> Tensor:
        if self.ids_SC is None:
            return column_S
        return self.ids_SC.gather(1, column_S[:, None])[:, 0]


def invert(masses_SC: Tensor, uniforms_S: Tensor) -> tuple[Tensor, Tensor]:
    """The first column of each row whose cumulative mass exceeds floor(uniform * total); the
    totals.

    Searches blocks first and then columns, with the same result: masses are integers and sum
    exactly. Columns of mass zero are never chosen. Rows with NaN return an arbitrary column.
    """
    num_rows, num_columns = masses_SC.shape
    blocks_SBW = F.pad(masses_SC, (0, -num_columns % _BLOCK)).view(num_rows, -1, _BLOCK)
    sums_SB = blocks_SBW.sum(dim=-1, dtype=torch.float64)
    edges_SB = sums_SB.cumsum(dim=-1)
    total_S1 = edges_SB[:, -1:]
    target_S1 = (uniforms_S[:, None] * total_S1).floor()
    block_S1 = torch.searchsorted(edges_SB, target_S1, right=True).clamp_(max=edges_SB.shape[1] - 1)
    target_S1 = target_S1 - (edges_SB.gather(1, block_S1) - sums_SB.gather(1, block_S1))
    rows_S = torch.arange(num_rows, device=masses_SC.device)
    inside_SW = blocks_SBW[rows_S, block_S1[:, 0]].cumsum(dim=-1, dtype=torch.float64)
    column_S = torch.searchsorted(inside_SW, target_S1, right=True)[:, 0]
    return (block_S1[:, 0] * _BLOCK + column_S).clamp_(max=num_columns - 1), total_S1[:, 0]
