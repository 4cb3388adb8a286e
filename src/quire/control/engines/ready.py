"""The queues of an engine whose next command may start now, and which of them have changed.

Owns the set, the tokens that its prompts have together, and the record of changes, so that an order
of commands can be updated from the changed queues alone. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from quire.control.programs.program import CommandQueue
from quire.core.commands import Decode


class ReadyQueues:
    """The queues that may start a command. ``take_changed`` returns those that were added,
    discarded or touched since its last call, in the order of their first change.
    ``has_had_spare``: any was spare at some time; without, no command of the engine is.
    ``num_prompt_tokens``: prompt tokens of the decodes that may start now, each as it was when its
    queue was added."""

    __slots__ = ("_changed", "_queues", "_spare", "has_had_spare", "num_prompt_tokens")

    def __init__(self) -> None:
        self._queues: dict[CommandQueue, int] = {}
        self._changed: dict[CommandQueue, None] = {}
        self._spare = set[CommandQueue]()
        self.has_had_spare = False
        self.num_prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, queue: object) -> bool:
        return queue in self._queues

    def __iter__(self) -> Iterator[CommandQueue]:
        return iter(self._queues)

    def add(self, queue: CommandQueue) -> None:
        num_tokens = _prompt_tokens(queue)
        self.num_prompt_tokens += num_tokens - self._queues.get(queue, 0)
        self._queues[queue] = num_tokens
        self._changed[queue] = None
        self.note_priority(queue)

    def note_priority(self, queue: CommandQueue) -> None:
        """Note that the queue's priority has changed: it may be spare now, or no longer."""
        if not queue.is_spare:
            self._spare.discard(queue)
            return
        self.has_had_spare = True
        if queue in self._queues:
            self._spare.add(queue)
        else:
            self._spare.discard(queue)

    @property
    def num_spare(self) -> int:
        """The number of spare queues."""
        return len(self._spare)

    def discard(self, queue: CommandQueue) -> None:
        if queue in self._queues:
            self.num_prompt_tokens -= self._queues.pop(queue)
            self._spare.discard(queue)
            self._changed[queue] = None

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def take_changed(self) -> list[CommandQueue]:
        changed = list(self._changed)
        self._changed.clear()
        return changed


def _prompt_tokens(queue: CommandQueue) -> int:
    head = queue.next_entry
    return len(head.command.tokens) if head is not None and type(head.command) is Decode else 0
