"""The life of one forward command: which of its inputs have been run, and whether it may be split.

Owns no rows and no memory. ``scores`` adds up the requested attention scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire.control.engines.score_sum import ScoreSum
from quire.control.memory.append_cursor import AppendCursor
from quire.control.memory.content import Content
from quire.control.memory.embeds import HeldEmbed
from quire.control.memory.pages import Page
from quire.control.programs.program import Entry
from quire.core.commands import Forward

Bools = NDArray[np.bool_]


class ForwardRun:
    """The progress of one command: ``num_run`` inputs have been run. ``hidden``: output pages
    outside the context, with their fills before the command."""

    def __init__(
        self,
        entry: Entry,
        command: Forward,
        context: list[Page],
        cursor: AppendCursor | None,
        inputs: list[HeldEmbed],
        outputs: list[HeldEmbed],
        adapter: int,
        page_size: int,
    ) -> None:
        self.entry = entry
        self.adapter = adapter
        self.context = context
        self.cursor = cursor
        self.inputs = inputs
        self.positions = [embed.position for embed in inputs]
        self.outputs: list[HeldEmbed | None] = [None] * (len(inputs) - len(outputs)) + list(outputs)
        self.mask = None if command.mask is None else np.array(command.mask, bool)
        self.num_run = 0
        self.scores = (
            ScoreSum(context, page_size, len(inputs), per_slot=command.scores == "slots")
            if command.scores
            else None
        )
        pages = [] if cursor is None else cursor.pages
        self.locked = list(pages)
        self.start_fills = [(page, page.fill) for page in pages]
        is_loop = command.output == command.context
        self.hidden = {} if is_loop else hidden_fills(pages, context)
        self._start_fill = (
            {p: p.fill for p in (*context, *pages)} if command.mask is not None else {}
        )
        self._written: list[tuple[Page, int, int]] = []
        self._filled: list[Page] | None = None

    def unlock(self) -> None:
        """Let other queues append to the output pages, as the command has ended."""
        for page in self.locked:
            page.unlock()
        self.locked = []

    @property
    def num_to_run(self) -> int:
        return len(self.inputs) - self.num_run

    @property
    def is_splittable(self) -> bool:
        """Whether no token sees a later one of ``inputs``, and K and V are kept."""
        if self.cursor is None:
            return False
        if self.mask is not None:
            new = self.mask[:, -len(self.inputs) :]
            return not np.triu(new, 1).any()
        return all(a <= b for a, b in zip(self.positions, self.positions[1:], strict=False))

    def seen(self) -> list[Content]:
        """The contents that the next part's tokens attend to, which must be on the device."""
        self._filled = filled = [page for page in self.context if page.fill]
        pages = [*filled, *self._own_pages()] if self.hidden else filled
        return [page.content for page in pages if page.content is not None]

    def _own_pages(self) -> list[Page]:
        """Output pages outside the context that earlier parts have written."""
        if not self.hidden:
            return []
        written = {page for page, _, _ in self._written}
        return [page for page in self.hidden if page in written]

    def _written_slots(self, num_tokens: int) -> list[tuple[Page, int]]:
        """The slots of the first ``num_tokens`` inputs, one by one."""
        slots = [
            (page, offset)
            for page, start, count in self._written
            for offset in range(start, start + count)
        ]
        return slots[:num_tokens]

    def table_pages(self) -> list[Page]:
        """The pages of the row's table: the whole context if a mask counts its slots, else its
        pages that are not empty; then output pages that earlier parts have written."""
        context = self.context
        if self.mask is None:
            context = self._filled or [page for page in self.context if page.fill]
        return [*context, *self._own_pages()] if self.hidden else context

    def note_written(self, spans: list[tuple[Page, int]]) -> None:
        """Note that a part is about to write ``spans``: (page, number of slots)."""
        for page, count in spans:
            self._written.append((page, page.fill, count))
            if not page.fill:
                self._filled = None

    def score_columns(self, start: int, stop: int, pages: list[Page]) -> NDArray[np.int64] | None:
        """The meaning of each column of the row for inputs ``start:stop``; None if no scores are
        requested."""
        if self.scores is None:
            return None
        return self.scores.columns(pages, self._written_slots(start), start, stop)

    def mask_rows(self, start: int, stop: int, pages: list[Page], page_size: int) -> Bools | None:
        """The explicit mask of inputs ``start:stop`` over the slots of ``pages`` and those inputs.

        For slots that earlier parts of this command wrote, the mask's column of the input applies,
        not that of the context slot.
        """
        if self.mask is None:
            return None
        num_context = len(self.context) * page_size
        columns = np.zeros((stop - start, len(pages) * page_size), bool)
        columns[:, :num_context] = self.mask[start:stop, :num_context]
        place = {page: index for index, page in enumerate(pages)}
        for page, index in place.items():
            first_new = self._start_fill.get(page, 0)
            columns[:, index * page_size + first_new : (index + 1) * page_size] = False
        for token, (page, offset) in enumerate(self._written_slots(start)):
            if page in place:
                column = place[page] * page_size + offset
                columns[:, column] = self.mask[start:stop, num_context + token]
        new = self.mask[start:stop, num_context + start : num_context + stop]
        return np.concatenate([columns, new], axis=1)


def hidden_fills(pages: Sequence[Page], context: Sequence[Page]) -> dict[Page, int]:
    """The fills of those output ``pages`` that are not in ``context``."""
    if pages == context:  # the usual loop passes one list for both
        return {}
    shown = set(context)
    return {page: page.fill for page in pages if page not in shown}
