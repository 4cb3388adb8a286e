"""The life of a command, as a table of legal transitions.

Owns nothing; every change goes through ``Entry.move``, which looks here.
"""

from __future__ import annotations

from enum import StrEnum


class CommandState(StrEnum):
    """QUEUED  in its queue, nothing done · STARTED  in messages, the first of which was planned ·
    FINISHED  its work is done, earlier commands of the queue are not · the other three are ends.
    """

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
            CommandState.FINISHED,  # at once, by control alone
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
