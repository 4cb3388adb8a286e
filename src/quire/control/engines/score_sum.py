"""The attention scores of one forward command: the sum of the results of its parts.

A command that is split into parts runs as several rows, each with its own table. Owns the mapping
from each row's columns to slots of the command's context or to its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.control.memory.pages import Page
from quire.core.batch import F32
from quire.core.batch_result import BatchResult
from quire.core.commands import AttentionScores
from quire.core.errors import EngineFault

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ScoredPart:
    """One row of a message. ``row``: its index among the message's rows with scores. ``columns``
    [C]: the command's column for each column of the row (slots of the context, then inputs); -1 for
    a slot that no token sees."""

    row: int
    columns: I64

    def check(self, result: BatchResult) -> None:
        """Raise ``EngineFault`` if ``result`` has another number of columns than the row."""
        starts, row = result.attention_starts, self.row
        width = int(starts[row + 1] - starts[row]) if row + 1 < len(starts) else 0
        if width != len(self.columns):
            raise EngineFault(
                f"the engine scores {width} columns of a row that has {len(self.columns)}: the "
                "peer is broken, restart it"
            )


class ScoreSum:
    """Adds up the scores of a command's rows. ``context``: pages in the order of the command."""

    def __init__(
        self, context: Sequence[Page], page_size: int, num_inputs: int, *, per_slot: bool
    ) -> None:
        self._place = {page: index for index, page in enumerate(context)}
        self._page_size = page_size
        self._num_inputs = num_inputs
        self._per_slot = per_slot
        self._mass_LC: F32 | None = None

    @property
    def _num_context(self) -> int:
        return len(self._place) * self._page_size

    def columns(
        self, pages: Sequence[Page], written: Sequence[tuple[Page, int]], start: int, stop: int
    ) -> I64:
        """The columns of a row with these table pages that runs inputs ``start:stop``. ``written``:
        the slots of the inputs before ``start``, in order."""
        size = self._page_size
        columns = np.full((len(pages), size), -1, np.int64)
        entry = {page: index for index, page in enumerate(pages)}
        for page, index in entry.items():
            if (place := self._place.get(page)) is not None:
                columns[index] = place * size + np.arange(size)
        for token, (page, offset) in enumerate(written):
            if page in entry:
                columns[entry[page], offset] = self._num_context + token
        return np.concatenate((columns.reshape(-1), self._num_context + np.arange(start, stop)))

    def add(self, part: ScoredPart, result: BatchResult) -> None:
        """Add the engine's scores of ``part``, whose number ``part.check`` has checked."""
        starts = result.attention_starts
        mass_LC = result.attention_mass[:, starts[part.row] : starts[part.row + 1]]
        if self._mass_LC is None:
            num_columns = self._num_context + self._num_inputs
            self._mass_LC = np.zeros((len(mass_LC), num_columns), np.float32)
        seen = np.flatnonzero(part.columns >= 0)
        self._mass_LC[:, part.columns[seen]] += mass_LC[:, seen]

    def reply(self) -> AttentionScores:
        assert self._mass_LC is not None, "a command runs in one part at least"
        num_layers, split = len(self._mass_LC), self._num_context
        slots = self._mass_LC[:, :split].reshape(num_layers, len(self._place), self._page_size)
        return AttentionScores(
            num_layers=num_layers,
            num_pages=len(self._place),
            page_size=self._page_size,
            num_inputs=self._num_inputs,
            pages=_packed(slots.sum(axis=2)),
            inputs=_packed(self._mass_LC[:, split:]),
            slots=_packed(slots) if self._per_slot else b"",
        )


def _packed(values: F32) -> bytes:
    return values.astype("<f4").tobytes()
