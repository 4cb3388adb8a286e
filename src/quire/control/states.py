"""The life of a command, as a table of legal transitions.

Owns nothing; every change of a command's state goes through ``advance``, so that an impossible
history is found where it happens.
"""

from __future__ import annotations

from enum import StrEnum


class CommandState(StrEnum):
    """QUEUED  in its queue, nothing done · STARTED  effects begun or in flight ·
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
        {CommandState.STARTED, CommandState.FAILED, CommandState.CANCELLED}
    ),
    CommandState.STARTED: frozenset(
        {CommandState.FINISHED, CommandState.FAILED, CommandState.CANCELLED}
    ),
    CommandState.FINISHED: ENDS,
    CommandState.DONE: frozenset(),
    CommandState.FAILED: frozenset(),
    CommandState.CANCELLED: frozenset(),
}


def advance(current: CommandState, to: CommandState) -> CommandState:
    """``to``, if it may follow ``current``."""
    assert to in TRANSITIONS[current], f"a command cannot go from {current} to {to}"
    return to


__all__ = ["ENDS", "TRANSITIONS", "CommandState", "advance"]
