"""Runs the engine's own decode loop, driven directly by messages like those of control.

The baseline for the overhead of control, programs and processes. Knows only how to execute a
message: ``execute`` may be an engine in this process or one behind a node (``pie.engine_tap``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.core.batch import (
    AdvanceRows,
    Batch,
    CloseSequences,
    DropTables,
    ForwardRows,
    OpenSequence,
    WriteTable,
)
from quire.core.batch_result import BatchResult
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.engine_info import PoolSpec
from quire.core.ids import SequenceId, TableId

Arrived = Callable[[int, int], None]
"""``arrived(prompt, count)``: ``count`` more tokens of the prompt with this index are known."""


_FIRST_STEP_S = 0.005
"""The assumed duration of the first step; later steps use measured ones."""


class FusedLoop:
    """Uses tables, sequences and blocks from 0 on, so nothing else may run on the engine. The
    prompts have equal lengths."""

    def __init__(self, execute: Callable[[Batch], BatchResult], pool: PoolSpec) -> None:
        self._execute = execute
        self._pool = pool
        self._step = 0

    def generate(
        self, prompts: list[list[int]], num_tokens: int, arrived: Arrived, *, message_s: float
    ) -> None:
        """Generate greedily, ``num_tokens`` for each prompt; a message takes about ``message_s``
        seconds (at least one step)."""
        ids = range(len(prompts))
        for chunks in self._messages(prompts):
            self._prefill(chunks, num_tokens)
            for chunk in chunks:
                if chunk.is_last:
                    arrived(chunk.index, 1)
        left, step_s = num_tokens - 1, _FIRST_STEP_S
        while left:
            num_steps = max(1, int(min(left, message_s / step_s)))
            advance = AdvanceRows(
                sequences=_i32(ids),
                epochs=_i32([1] * len(ids)),
                max_steps=_i32([num_steps] * len(ids)),
            )
            step_s = self._send(num_steps=num_steps, advance=advance).elapsed_s / num_steps
            left -= num_steps
            for index in ids:
                arrived(index, num_steps)
        self._send(
            operations=[
                CloseSequences(sequences=[SequenceId(index) for index in ids]),
                DropTables(tables=[TableId(index) for index in ids]),
            ]
        )

    def _send(self, **fields: Any) -> BatchResult:
        result = self._execute(Batch(serial=self._step, **fields))
        if result.failures:
            raise RuntimeError(f"the engine reports {result.failures}")
        self._step += 1
        return result

    def _messages(self, prompts: list[list[int]]) -> Iterator[list[_Chunk]]:
        """The prompts in order, split so that each message is full, as control fills them."""
        limit = self._pool.max_batch_tokens
        message: list[_Chunk] = []
        room = limit
        for index, prompt in enumerate(prompts):
            start = 0
            while start < len(prompt):
                stop = min(len(prompt), start + room)
                message.append(_Chunk(index, prompt, start, stop))
                room -= stop - start
                start = stop
                if room == 0:
                    yield message
                    message, room = [], limit
        if message:
            yield message

    def _prefill(self, chunks: list[_Chunk], num_tokens: int) -> None:
        """One message; the last chunk of a prompt samples a token."""
        size = self._pool.page_size
        operations: list[Any] = []
        slots = []
        for chunk in chunks:
            num_pages = -(-(len(chunk.prompt) + num_tokens) // size)
            blocks = np.arange(num_pages, dtype=np.int32) + chunk.index * num_pages
            written = np.minimum(np.maximum(chunk.stop - np.arange(num_pages) * size, 0), size)
            visible = np.array([(1 << int(count)) - 1 for count in written], np.uint64)
            operations.append(
                WriteTable(table=TableId(chunk.index), start=0, blocks=blocks, visible=visible)
            )
            if chunk.is_last:
                operations.append(self._sequence(chunk, num_pages, num_tokens))
            slots.append((blocks[:, None] * size + np.arange(size)).ravel()[chunk.places])
        self._send(operations=operations, forward=_rows(chunks, np.concatenate(slots)))

    def _sequence(self, chunk: _Chunk, num_pages: int, num_tokens: int) -> OpenSequence:
        return OpenSequence(
            sequence=SequenceId(chunk.index),
            epoch=1,
            table=TableId(chunk.index),
            cursor=chunk.stop,
            limit=num_pages * self._pool.page_size,
            position=chunk.stop,
            sampler=SamplerSpec(),
            stop=StopSpec(max_tokens=num_tokens + 1),
            history=_i32(chunk.prompt),
        )


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Tokens ``start`` to ``stop`` of a prompt."""

    index: int
    prompt: list[int]
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        return self.stop == len(self.prompt)

    @property
    def places(self) -> slice:
        return slice(self.start, self.stop)


def _rows(chunks: list[_Chunk], slots: Any) -> ForwardRows:
    counts = [chunk.stop - chunk.start for chunk in chunks]
    return ForwardRows(
        row_starts=_i32([0, *np.cumsum(counts)]),
        tables=_i32([chunk.index for chunk in chunks]),
        sequences=_i32([chunk.index if chunk.is_last else -1 for chunk in chunks]),
        tokens=_i32(np.concatenate([chunk.prompt[chunk.places] for chunk in chunks])),
        embeds=_i32([-1] * sum(counts)),
        positions=_i32(np.concatenate([np.arange(chunk.start, chunk.stop) for chunk in chunks]))[
            None
        ],
        slots=slots[None].astype(np.int32),
        outputs=_i32([-1] * sum(counts)),
    )


def _i32(values: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)
