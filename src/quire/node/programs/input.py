"""Passes the input of clients to a program: messages, the end of input, and signals.

Belongs to the edge's loop. ``Restarts`` records the input of a restartable program.
"""

from __future__ import annotations

from quire.core.errors import InvalidArgument
from quire.node.programs.restarting.restarts import Restarts
from quire.programs.runtime.running import RunningProgram
from quire.programs.services.mailbox import SentMessage

SIGNALS = ("message", "end_of_input", "cancel")


def check_signal(name: str, message: str | None) -> None:
    """Refuse another name, or a missing or unexpected text (``InvalidArgument``)."""
    if name not in SIGNALS:
        raise InvalidArgument(f"no signal {name!r}: use one of {', '.join(SIGNALS)}")
    if (name == "message") is (message is None):
        given = "none" if message is None else "one"
        raise InvalidArgument(
            f"signal {name!r} was given {given}: 'message' needs a text, the others take none"
        )


def send(message: str, running: RunningProgram, restarts: Restarts | None) -> SentMessage:
    """See ``Restarts.send``."""
    return running.send(message) if restarts is None else restarts.send(running, message)


def close_input(running: RunningProgram, restarts: Restarts | None) -> None:
    """Tell the program that no further message follows."""
    if restarts is None:
        running.close_input()
    else:
        restarts.close_input(running)
