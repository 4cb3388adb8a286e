"""The message being built: rows are gathered as lists and converted to flat arrays once.

Owns the layout (which index belongs to which command); decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from quire.control.engines.advanced_rows import AdvancedRows
from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.fine_rows import FineRows
from quire.control.engines.in_flight import CommandItems, InFlight, MessageStage, RestoredRow
from quire.control.engines.int_array import i32
from quire.control.engines.score_sum import ScoredPart
from quire.control.memory.content import Content
from quire.control.memory.pages import Page
from quire.control.programs.program import Entry
from quire.core.batch import Batch, BatchOperation, ExplicitMask, ForwardRows
from quire.core.ids import TableId

_FORWARD = MessageStage.FORWARD
"""A local name, because Python 3.11 resolves an enum member on each access, which takes longer than
its use."""


@dataclass(slots=True)
class ForwardRow:
    """One row of the forward stage; lists of equal length, one item per new token."""

    table: TableId | None
    tokens: list[int]
    embeds: list[int]
    positions: list[int]
    slots: list[int]
    outputs: list[int]
    score_targets: Sequence[int] = ()
    num_scores: int = 0
    mask: NDArray[np.bool_] | None = None
    adapter: int = -1
    score_columns: NDArray[np.int64] | None = None


class BatchBuilder:
    """Gathers one message. Rows keep the order in which they are added.

    ``budget``: tokens that may still be added; ``prompt_budget``: how many of them may belong to
    prompts computed in chunks. ``runs``: decodes in the message, opened or advanced.
    ``num_turned``: slots that the message moves to other positions. ``read_embeds``: embeds that
    its forward rows read.
    """

    def __init__(self, serial: int, budget: int, prompt_budget: int | None = None) -> None:
        self.serial = serial
        self.budget = budget
        self.prompt_budget = budget if prompt_budget is None else prompt_budget
        self.parts: list[CommandItems] = []
        self.pins: list[Content] = []
        self.filled: list[Content] = []
        self.lost: list[Content] = []
        self.restores: list[RestoredRow] = []
        self.openings: list[Entry] = []
        self.opened: list[DecodeRun] = []
        self.advanced: list[DecodeRun] = []
        self.runs: set[DecodeRun] = set()
        self.num_tokens = 0
        self.num_turned = 0
        self.read_embeds: set[int] = set()
        self._pins_of_copies: dict[int, int] = {}
        self._fine: FineRows | None = None
        self._rows: list[ForwardRow] = []
        self._row_sequences: list[int] = []
        self._scored_rows: list[int] = []

    @property
    def is_empty(self) -> bool:
        return not self.parts and not self.advanced and not self.restores

    @property
    def has_image(self) -> bool:
        return self._fine is not None and bool(self._fine.images)

    def has_room_to_turn(self, num_slots: int, most: int) -> bool:
        """Whether ``num_slots`` more slots may be moved to other positions, of at most ``most`` in
        a message. The first page of a message always may."""
        return not self.num_turned or self.num_turned + num_slots <= most

    def copied_to(self, content: Content) -> None:
        """Note that slots are copied to ``content``, all of whose pins are those of such copies."""
        self._pins_of_copies[id(content)] = content.num_pins

    def is_read(self, content: Content) -> bool:
        """Whether a command reads ``content``: an open sequence, a row of this message or of one in
        flight. Copies of this message alone do not count."""
        return content.num_pins > self._pins_of_copies.get(id(content), 0)

    @property
    def num_commands(self) -> int:
        return len(self.parts) + len(self.advanced)

    def operation(self, entry: Entry, *, is_final: bool = True) -> None:
        """Add a command that consists of operations alone. ``is_final``: the message completes
        it."""
        self.parts.append(CommandItems(entry, MessageStage.OPERATIONS, 0, 0, is_final=is_final))

    def opening(self, entry: Entry) -> None:
        """Add a command whose lease the message opens."""
        self.openings.append(entry)
        self.operation(entry, is_final=False)

    @property
    def fine(self) -> FineRows:
        """Takes what commands of the fine tier add to the message."""
        if self._fine is None:
            self._fine = FineRows(self.parts)
        return self._fine

    def forward(
        self,
        entry: Entry,
        row: ForwardRow,
        first_token: int,
        undo: list[tuple[Page, int]],
        is_final: bool,
    ) -> None:
        """Add a row of ``entry``, which begins at the command's token ``first_token``."""
        index = len(self._rows)
        num_new = len(row.positions)
        self._rows.append(row)
        self._row_sequences.append(-1)
        scored = None
        if row.score_columns is not None:
            scored = ScoredPart(len(self._scored_rows), row.score_columns)
            self._scored_rows.append(index)
        self.parts.append(
            CommandItems(
                entry,
                _FORWARD,
                index,
                index + 1,
                self.num_tokens,
                num_new,
                first_token,
                undo,
                is_final,
                scored,
            )
        )
        self.num_tokens += num_new
        self.budget -= num_new

    def restore(self, row: ForwardRow, contents: list[Content], requester: Entry) -> None:
        """Add a row that recomputes lost ``contents``; ``requester``: the most senior command that
        waits for them."""
        self.restores.append(RestoredRow(len(self._rows), contents, len(row.positions), requester))
        self._rows.append(row)
        self._row_sequences.append(-1)
        self.num_tokens += len(row.positions)
        self.budget -= len(row.positions)

    def open_sequence(self, run: DecodeRun) -> None:
        """Open the sequence of ``run``: the row added last samples its first token."""
        assert run.sequence is not None
        self._row_sequences[-1] = run.sequence
        self.opened.append(run)
        self.runs.add(run)

    def advance(self, run: DecodeRun) -> None:
        self.advanced.append(run)
        self.runs.add(run)
        self.budget -= 1

    def finish(
        self,
        operations: list[BatchOperation],
        num_steps: int,
        max_steps: list[int],
        advanced: AdvancedRows,
    ) -> Batch:
        """The message. ``max_steps`` has one entry per advanced sequence; ``advanced`` makes their
        rows and belongs to the engine."""
        advance = advanced.rows(self.advanced, max_steps)
        fine = self._fine
        if fine is None:
            return Batch(
                serial=self.serial,
                num_steps=num_steps,
                operations=operations,
                forward=self._forward_rows(),
                advance=advance,
            )
        return Batch(
            serial=self.serial,
            num_steps=num_steps,
            operations=operations,
            embeds=fine.embed_rows(),
            images=fine.images,
            forward=self._forward_rows(),
            dists=fine.dist_rows(),
            samples=fine.sample_rows(),
            advance=advance,
        )

    def in_flight(
        self, num_steps: int, max_steps: list[int], number: int, sent_s: float
    ) -> InFlight:
        """What control remembers of the message; ``number``, ``sent_s``: see ``InFlight``."""
        num_opened = len(self.opened)
        return InFlight(
            serial=self.serial,
            num_steps=num_steps,
            parts=self.parts,
            runs=self.opened + self.advanced if num_opened else self.advanced,
            steps=[num_steps] * num_opened + max_steps if num_opened else max_steps,
            num_opened=num_opened,
            pins=self.pins,
            filled=self.filled,
            restores=self.restores,
            openings=self.openings,
            num_tokens=self.num_tokens + sum(max_steps),
            num_commands=self.num_commands,
            number=number,
            sent_s=sent_s,
        )

    def _forward_rows(self) -> ForwardRows | None:
        rows = self._rows
        if not rows:
            return None
        has_scores = any(row.score_targets for row in rows)
        adapters = [row.adapter for row in rows]
        targets: list[int] = []
        for row in rows if has_scores else ():
            targets += row.score_targets or [-1] * len(row.positions)
        return ForwardRows(
            row_starts=i32([*accumulate((len(row.positions) for row in rows), initial=0)]),
            tables=i32([-1 if row.table is None else row.table for row in rows]),
            sequences=i32(self._row_sequences),
            tokens=i32(_joined([row.tokens for row in rows])),
            embeds=i32(_joined([row.embeds for row in rows])),
            positions=i32(_joined([row.positions for row in rows]))[None, :],
            slots=i32(_joined([row.slots for row in rows]))[None, :],
            outputs=i32(_joined([row.outputs for row in rows])),
            score_targets=i32(targets),
            num_scores=max((row.num_scores for row in rows), default=0),
            masks=[
                ExplicitMask(row=index, num_columns=row.mask.shape[1], bits=np.packbits(row.mask))
                for index, row in enumerate(rows)
                if row.mask is not None
            ],
            adapters=i32(adapters if max(adapters) >= 0 else []),
            attention_rows=i32(self._scored_rows),
        )


def _joined(parts: list[list[int]]) -> list[int]:
    """All items of ``parts``, in one list."""
    whole: list[int] = []
    for part in parts:
        whole += part
    return whole
