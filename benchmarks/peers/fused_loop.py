"""The engine's own decode loop, driven by messages as control sends them and by nothing else.

The baseline of what control, programs and processes add. Knows only how a message is executed:
``execute`` may be the engine of this process or one behind a node (``pie.engine_tap``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from quire.core.batch import (
    AdvanceRows,
    Batch,
    BatchResult,
    CloseSequences,
    DropTables,
    ForwardRows,
    OpenSequence,
    WriteTable,
)
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.engine_info import PoolSpec
from quire.core.ids import SequenceId, TableId

Arrived = Callable[[int, int], None]
"""``arrived(prompt, count)``: ``count`` more tokens of the prompt with this index are known."""


_FIRST_STEP_S = 0.005
"""What the first step is taken to last; from then on it is known."""


class FusedLoop:
    """Uses tables, sequences and blocks from 0 on, so nothing else may run on the engine."""

    def __init__(self, execute: Callable[[Batch], BatchResult], pool: PoolSpec) -> None:
        self._execute = execute
        self._pool = pool
        self._step = 0

    def generate(
        self, prompts: list[list[int]], num_tokens: int, arrived: Arrived, *, message_s: float
    ) -> None:
        """Greedy, ``num_tokens`` for each prompt; a message takes about ``message_s`` seconds (and
        one step at least)."""
        ids = range(len(prompts))
        for index, prompt in enumerate(prompts):
            self._prefill(index, prompt, num_tokens)
            arrived(index, 1)
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
        result = self._execute(Batch(step=self._step, **fields))
        if result.failures:
            raise RuntimeError(f"the engine reports {result.failures}")
        self._step += 1
        return result

    def _prefill(self, index: int, prompt: list[int], num_tokens: int) -> None:
        """The prompt in chunks as control would send it; the last one samples a token."""
        size, length = self._pool.page_size, len(prompt)
        num_pages = -(-(length + num_tokens) // size)
        blocks = np.arange(num_pages, dtype=np.int32) + index * num_pages
        slots = (blocks[:, None] * size + np.arange(size)).ravel()
        for start in range(0, length, self._pool.max_batch_tokens):
            stop = min(length, start + self._pool.max_batch_tokens)
            written = np.minimum(np.maximum(stop - np.arange(num_pages) * size, 0), size)
            visible = np.array([(1 << int(count)) - 1 for count in written], np.uint64)
            operations: list[Any] = [
                WriteTable(table=TableId(index), start=0, blocks=blocks, visible=visible)
            ]
            if stop == length:
                operations.append(self._sequence(index, prompt, num_pages, num_tokens))
            self._send(operations=operations, forward=_row(index, prompt, start, stop, slots))

    def _sequence(
        self, index: int, prompt: list[int], num_pages: int, num_tokens: int
    ) -> OpenSequence:
        return OpenSequence(
            sequence=SequenceId(index),
            epoch=1,
            table=TableId(index),
            cursor=len(prompt),
            limit=num_pages * self._pool.page_size,
            position=len(prompt),
            sampler=SamplerSpec(),
            stop=StopSpec(max_tokens=num_tokens + 1),
            history=_i32(prompt),
        )


def _row(index: int, prompt: list[int], start: int, stop: int, slots: Any) -> ForwardRows:
    count = stop - start
    return ForwardRows(
        row_starts=_i32([0, count]),
        tables=_i32([index]),
        sequences=_i32([index if stop == len(prompt) else -1]),
        tokens=_i32(prompt[start:stop]),
        embeds=_i32([-1] * count),
        positions=_i32([range(start, stop)]),
        slots=slots[None, start:stop].astype(np.int32),
        outputs=_i32([-1] * count),
    )


def _i32(values: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


__all__ = ["FusedLoop"]
