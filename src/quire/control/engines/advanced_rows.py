"""The rows of open sequences that a message advances, kept for as long as they are the same.

Most of an engine's decodes go on from one message to the next, so the arrays of the last message
serve the next one too. Owns these arrays, which must not be changed.
"""

from __future__ import annotations

from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.int_array import i32
from quire.core.batch import I32, AdvanceRows


class AdvancedRows:
    """The advanced rows of one engine. An epoch is never used again, so equal epochs mean equal
    sequences."""

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._max_steps: list[int] = []
        self._sequence_array: I32 = i32([])
        self._epoch_array: I32 = i32([])
        self._step_array: I32 = i32([])

    def rows(self, runs: list[DecodeRun], max_steps: list[int]) -> AdvanceRows | None:
        """The rows of ``runs``, with one number of ``max_steps`` for each; None if there are
        none."""
        if not runs:
            return None
        epochs = [run.epoch for run in runs]
        if epochs != self._epochs:
            sequences = [-1 if run.sequence is None else run.sequence for run in runs]
            self._epochs, self._epoch_array = epochs, i32(epochs)
            self._sequence_array = i32(sequences)
        if max_steps != self._max_steps:
            self._max_steps, self._step_array = list(max_steps), i32(max_steps)
        return AdvanceRows(
            sequences=self._sequence_array, epochs=self._epoch_array, max_steps=self._step_array
        )
