"""The histories and counts that the processors of one group may read in one step, each read once.

Shapes: S rows, L tokens or distinct tokens per row.
"""

from __future__ import annotations

from functools import cached_property

from torch import Tensor

from quire.engine.sampling.columns import I64
from quire.engine.sampling.dry_matches import DryMatches
from quire.engine.sampling.memory import Counts, CountStore, HistoryStore
from quire.engine.sampling.protocol import History


class Stores:
    """The stores of a sampler table."""

    __slots__ = ("counts", "histories", "matches")

    def __init__(self, counts: CountStore, histories: HistoryStore, matches: DryMatches) -> None:
        self.counts = counts
        self.histories = histories
        self.matches = matches


class GroupMemory:
    """A view of the stores for the rows of a group, valid until a token is appended."""

    def __init__(self, stores: Stores, rows_S: I64, index_S: Tensor) -> None:
        self._stores = stores
        self._rows_S = rows_S
        self._index_S = index_S

    @cached_property
    def counts(self) -> Counts:
        return self._stores.counts.view(self._rows_S, self._index_S)

    @cached_property
    def history(self) -> History:
        return self._stores.histories.view(self._rows_S, self._index_S)

    @cached_property
    def match_lengths(self) -> Tensor:
        """``[S, L]``, see ``DryMatches``; columns are those of ``history``."""
        return self._stores.matches.view(self._index_S, self.history.tokens_SL.shape[1])
