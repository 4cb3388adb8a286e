"""The names that a router and its nodes use for connections to a running program.

What they are for stands in ``routes.attach``, which serves them.
"""

from __future__ import annotations

import re

from quire.core.errors import EngineLost

HAS_MOVED = 1012
"""Close code: the program is at another node now, to which a router attaches its client."""
CONNECTION_HEADER = "x-quire-connection"
BEFORE_HEADER = "x-quire-connection-before"
TAKEN_HEADER = "x-quire-frames-taken"
_MOVED = "the program has moved to another node; frames taken here: {}"
_TAKEN = re.compile(r"frames taken here: (\d{1,15})$")


def moved_reason(num_taken: int) -> str:
    """Return the reason of a close with ``HAS_MOVED``, behind ``num_taken`` frames."""
    return _MOVED.format(num_taken)


def frames_taken(reason: str) -> int:
    """Return how many frames of a connection that was closed with ``HAS_MOVED`` were taken: the
    program has them, or their client was answered why not.

    Raises:
        EngineLost: the reason does not contain it.
    """
    found = _TAKEN.search(reason)
    if found is None:
        raise EngineLost(
            "the program has moved, and its node does not say what it has: attach again"
        )
    return int(found[1])
