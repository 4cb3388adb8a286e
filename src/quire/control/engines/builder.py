"""The message being built: rows are gathered as lists and converted to flat arrays once.

Owns the layout (which index belongs to which command); decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.in_flight import InFlight, Part, Restored, Stage
from quire.control.engines.score_sum import ScoredPart
from quire.control.memory.content import Content
from quire.control.memory.pages import Page
from quire.control.programs.program import Entry
from quire.core.batch import (
    AdvanceRows,
    Batch,
    BatchOperation,
    DistRows,
    EmbedRows,
    ExplicitMask,
    ForwardRows,
    ImageRow,
    SampleRows,
)
from quire.core.decoding import SamplerSpec
from quire.core.ids import TableId

_EMBEDS, _FORWARD = Stage.EMBEDS, Stage.FORWARD
_DISTS, _SAMPLES = Stage.DISTS, Stage.SAMPLES
"""Local names, because Python 3.11 resolves an enum member on each access, which takes longer than
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


def _i32(values: list[int]) -> NDArray[np.int32]:
    return np.fromiter(values, np.int32, len(values))  # np.array looks for lists in the list


class BatchBuilder:
    """Gathers one message. Rows keep the order in which they are added.

    ``budget``: tokens that may still be added; ``prompt_budget``: how many of them may belong to
    prompts computed in chunks. ``runs``: decodes in the message, opened or advanced.
    ``num_turned``: slots that it moves to other positions.
    """

    def __init__(self, step: int, budget: int, prompt_budget: int | None = None) -> None:
        self.step = step
        self.budget = budget
        self.prompt_budget = budget if prompt_budget is None else prompt_budget
        self.parts: list[Part] = []
        self.pins: list[Content] = []
        self.filled: list[Content] = []
        self.lost: list[Content] = []
        self.restores: list[Restored] = []
        self.opened: list[DecodeRun] = []
        self.advanced: list[DecodeRun] = []
        self.runs: set[DecodeRun] = set()
        self.num_tokens = 0
        self.num_turned = 0
        self._embed_tokens: list[int] = []
        self._embed_slots: list[int] = []
        self._images: list[ImageRow] = []
        self._rows: list[ForwardRow] = []
        self._row_sequences: list[int] = []
        self._scored_rows: list[int] = []
        self._dist_embeds: list[int] = []
        self._dist_top_k: list[int] = []
        self._sample_embeds: list[int] = []
        self._sample_index: list[int] = []
        self._samplers: list[SamplerSpec] = []
        self._histories: list[list[int]] = []
        self._sample_positions: list[int] = []
        self._sample_token_slots: list[int] = []

    @property
    def is_empty(self) -> bool:
        return not self.parts and not self.advanced and not self.restores

    @property
    def has_image(self) -> bool:
        return bool(self._images)

    def has_room_to_turn(self, num_slots: int, most: int) -> bool:
        """Whether ``num_slots`` more slots may be moved to other positions, of at most ``most`` in
        a message. The first page of a message always may."""
        return not self.num_turned or self.num_turned + num_slots <= most

    @property
    def num_commands(self) -> int:
        return len(self.parts) + len(self.advanced)

    def operation(self, entry: Entry, *, is_final: bool = True) -> None:
        """Add a command that consists of operations alone. ``is_final``: it is done with the
        message."""
        self.parts.append(Part(entry, Stage.OPERATIONS, 0, 0, is_final=is_final))

    def embed(self, entry: Entry, tokens: list[int], slots: list[int]) -> None:
        start = len(self._embed_tokens)
        self._embed_tokens += tokens
        self._embed_slots += slots
        self.parts.append(Part(entry, _EMBEDS, start, len(self._embed_tokens)))

    def image(self, entry: Entry, file: bytes, slots: list[int]) -> None:
        index = len(self._images)
        self._images.append(ImageRow(file=np.frombuffer(file, np.uint8), embeds=_i32(slots)))
        self.parts.append(Part(entry, Stage.IMAGES, index, index + 1, num_tokens=len(slots)))

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
            Part(
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
        self.restores.append(Restored(len(self._rows), contents, len(row.positions), requester))
        self._rows.append(row)
        self._row_sequences.append(-1)
        self.num_tokens += len(row.positions)
        self.budget -= len(row.positions)

    def open_sequence(self, run: DecodeRun) -> None:
        """The row added last samples the first token of ``run``."""
        assert run.sequence is not None
        self._row_sequences[-1] = run.sequence
        self.opened.append(run)
        self.runs.add(run)

    def advance(self, run: DecodeRun) -> None:
        self.advanced.append(run)
        self.runs.add(run)
        self.budget -= 1

    def dists(self, entry: Entry, embeds: list[int], top_k: int) -> None:
        start = len(self._dist_embeds)
        self._dist_embeds += embeds
        self._dist_top_k += [top_k] * len(embeds)
        self.parts.append(Part(entry, _DISTS, start, len(self._dist_embeds)))

    def samples(
        self,
        entry: Entry,
        embeds: list[int],
        sampler: SamplerSpec,
        positions: list[int],
        token_slots: list[int],
        history: list[int],
    ) -> None:
        start = len(self._sample_embeds)
        is_new = bool(history) or not self._samplers or self._samplers[-1] != sampler
        if is_new or self._histories[-1]:
            self._samplers.append(sampler)
            self._histories.append(history)
        self._sample_embeds += embeds
        self._sample_index += [len(self._samplers) - 1] * len(embeds)
        self._sample_positions += positions
        self._sample_token_slots += token_slots
        self.parts.append(Part(entry, _SAMPLES, start, len(self._sample_embeds)))

    def finish(
        self, operations: list[BatchOperation], num_steps: int, max_steps: list[int]
    ) -> Batch:
        """The message; ``max_steps`` has one entry per advanced sequence."""
        return Batch(
            step=self.step,
            num_steps=num_steps,
            operations=operations,
            embeds=self._embed_rows(),
            images=self._images,
            forward=self._forward_rows(),
            dists=self._dist_rows(),
            samples=self._sample_rows(),
            advance=self._advance_rows(max_steps),
        )

    def in_flight(self, num_steps: int, max_steps: list[int]) -> InFlight:
        runs = self.opened + self.advanced
        return InFlight(
            step=self.step,
            num_steps=num_steps,
            parts=self.parts,
            runs=runs,
            steps=[num_steps] * len(self.opened) + max_steps,
            num_opened=len(self.opened),
            pins=self.pins,
            filled=self.filled,
            restores=self.restores,
            num_tokens=self.num_tokens + sum(max_steps),
            num_commands=self.num_commands,
        )

    def _embed_rows(self) -> EmbedRows | None:
        if not self._embed_tokens:
            return None
        return EmbedRows(tokens=_i32(self._embed_tokens), embeds=_i32(self._embed_slots))

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
            row_starts=_i32([*accumulate((len(row.positions) for row in rows), initial=0)]),
            tables=_i32([-1 if row.table is None else row.table for row in rows]),
            sequences=_i32(self._row_sequences),
            tokens=_i32([token for row in rows for token in row.tokens]),
            embeds=_i32([embed for row in rows for embed in row.embeds]),
            positions=_i32([position for row in rows for position in row.positions])[None, :],
            slots=_i32([slot for row in rows for slot in row.slots])[None, :],
            outputs=_i32([output for row in rows for output in row.outputs]),
            score_targets=_i32(targets),
            num_scores=max((row.num_scores for row in rows), default=0),
            masks=[
                ExplicitMask(row=index, num_columns=row.mask.shape[1], bits=np.packbits(row.mask))
                for index, row in enumerate(rows)
                if row.mask is not None
            ],
            adapters=_i32(adapters if max(adapters) >= 0 else []),
            attention_rows=_i32(self._scored_rows),
        )

    def _dist_rows(self) -> DistRows | None:
        if not self._dist_embeds:
            return None
        return DistRows(embeds=_i32(self._dist_embeds), top_k=_i32(self._dist_top_k))

    def _sample_rows(self) -> SampleRows | None:
        if not self._samplers:
            return None
        has_history = any(self._histories)
        return SampleRows(
            embeds=_i32(self._sample_embeds),
            sampler_index=_i32(self._sample_index),
            samplers=self._samplers,
            positions=_i32(self._sample_positions),
            token_slots=_i32(self._sample_token_slots),
            histories=[_i32(history) for history in self._histories] if has_history else [],
        )

    def _advance_rows(self, max_steps: list[int]) -> AdvanceRows | None:
        if not self.advanced:
            return None
        return AdvanceRows(
            sequences=_i32([-1 if run.sequence is None else run.sequence for run in self.advanced]),
            epochs=_i32([run.epoch for run in self.advanced]),
            max_steps=_i32(max_steps),
        )
