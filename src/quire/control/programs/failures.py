"""The commands of a program that have failed, for commands that name them in ``after``.

Owns the bound: a session that cancels commands is one program for its whole life and would
otherwise remember every cancelled command.
"""

from __future__ import annotations

from quire.core.ids import CommandId

MAX_KEPT = 4096


class Failures:
    """The latest ``limit`` commands of one program that failed or were cancelled."""

    def __init__(self, limit: int = MAX_KEPT) -> None:
        self._limit = limit
        self._kept: dict[CommandId, None] = {}
        self._forgotten: CommandId | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, command: CommandId) -> bool:
        return command in self._kept

    def add(self, command: CommandId) -> None:
        self._kept[command] = None
        if len(self._kept) > self._limit:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._forgotten = max(oldest, oldest if self._forgotten is None else self._forgotten)

    def may_have_forgotten(self, command: CommandId) -> bool:
        """Whether ``command`` is so old that its outcome may no longer be known."""
        return self._forgotten is not None and command <= self._forgotten
