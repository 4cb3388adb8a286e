"""The life of a command, as a table of legal transitions.

Owns no state; ``Entry.move`` checks every change against the table.
"""

from __future__ import annotations

from enum import StrEnum


class CommandState(StrEnum):
    """QUEUED: in its queue, not begun. STARTED: its first batch message was planned. FINISHED: its
    work is done, but an earlier command of its queue has not ended. The other three are final."""

    QUEUED = "queued"
    STARTED = "started"
    FINISHED = "finished"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDS = frozenset({CommandState.DONE, CommandState.FAILED, CommandState.CANCELLED})

TRANSITIONS: dict[CommandState, frozenset[CommandState]] = {
    CommandState.QUEUED: frozenset(
        {
            CommandState.STARTED,
            CommandState.FINISHED,  # control executes some commands itself
            CommandState.FAILED,
            CommandState.CANCELLED,
        }
    ),
    CommandState.STARTED: frozenset(
        {CommandState.FINISHED, CommandState.FAILED, CommandState.CANCELLED}
    ),
    CommandState.FINISHED: ENDS,
    CommandState.DONE: frozenset(),
    CommandState.FAILED: frozenset(),
    CommandState.CANCELLED: frozenset(),
}
