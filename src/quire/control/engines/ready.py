"""The queues of an engine whose next command may start now, and which of them have changed.

Owns the set and the record of changes, so that an order of commands can be updated from the changed
queues alone. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from quire.control.programs.program import CommandQueue


class ReadyQueues:
    """``take_changed`` returns the queues that were added, discarded or touched since its last
    call, in the order of their first change."""

    __slots__ = ("_changed", "_queues")

    def __init__(self) -> None:
        self._queues: dict[CommandQueue, None] = {}
        self._changed: dict[CommandQueue, None] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, queue: object) -> bool:
        return queue in self._queues

    def __iter__(self) -> Iterator[CommandQueue]:
        return iter(self._queues)

    def add(self, queue: CommandQueue) -> None:
        self._queues[queue] = None
        self._changed[queue] = None

    def discard(self, queue: CommandQueue) -> None:
        if queue in self._queues:
            del self._queues[queue]
            self._changed[queue] = None

    def touch(self, queue: CommandQueue) -> None:
        """Something that determines the order of the queue's commands has changed."""
        self._changed[queue] = None

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def take_changed(self) -> list[CommandQueue]:
        changed = list(self._changed)
        self._changed.clear()
        return changed
