"""The time between the messages of an engine, besides its own: control's work and the transport.

Owns when a message begins and what counts as its rows, in the same way for shell and profile.
Control in a simulation decides in no time; on a node each message and each row costs it time, and
so does the way to the engine and back.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.batch import Batch
from quire.core.encoding import EncodeBatch


@dataclass(frozen=True, slots=True)
class Overhead:
    """The overhead in seconds. ``gap_s`` and ``gap_row_s``: for a message that is sent to an idle
    engine, and for each of its rows; ``behind_s`` and ``behind_row_s``: for one that waits behind
    another, from that one's end on."""

    gap_s: float = 0.0
    gap_row_s: float = 0.0
    behind_s: float = 0.0
    behind_row_s: float = 0.0

    def begin_s(self, sent_s: float, free_s: float, num_rows: int) -> float:
        """The begin of a message of ``num_rows`` rows that was sent at ``sent_s``, on an engine
        whose message before it ended at ``free_s``. The time of its result's way back counts here
        too."""
        arrived_s = sent_s + self.gap_s + self.gap_row_s * num_rows
        if sent_s >= free_s:
            return arrived_s
        return max(arrived_s, free_s + self.behind_s + self.behind_row_s * num_rows)


def num_rows(batch: Batch | EncodeBatch) -> int:
    """Commands that the message carries: prompts, and decodes that go on."""
    if isinstance(batch, EncodeBatch):
        return 0
    num_prompts = 0 if batch.forward is None else len(batch.forward.row_starts) - 1
    return num_prompts + (0 if batch.advance is None else len(batch.advance.sequences))
