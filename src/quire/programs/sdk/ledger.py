"""The holders of pages, so that forks share pages and the last holder frees them.

Owns the counts of one family of forks. Closing a queue frees all pages that were allocated on it,
so a queue stays open, idle, until the last of its pages has no holder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quire.core.commands import Synchronize
from quire.core.ids import QueueId
from quire.programs.api import KvPage, Queue
from quire.programs.api.allocate import AllocateFunctions
from quire.programs.api.core import CoreFunctions
from quire.programs.api.issuer import Issuer


class PageLedger:
    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self._allocate = AllocateFunctions(issuer)
        self._core = CoreFunctions(issuer)
        self._holders: Counter[int] = Counter()
        self._origin: dict[int, Queue] = {}
        self._live: Counter[QueueId] = Counter()
        self._retired: dict[QueueId, tuple[Queue, bool]] = {}

    def add(self, pages: Sequence[KvPage], queue: Queue) -> None:
        """Add new pages, allocated or imported on ``queue``, with one holder."""
        for page in pages:
            self._holders[page.id] = 1
            self._origin[page.id] = queue
        self._live[queue.id] += len(pages)

    def share(self, pages: Sequence[KvPage]) -> None:
        for page in pages:
            self._holders[page.id] += 1

    def num_shared(self, pages: Sequence[KvPage]) -> int:
        """Count those of ``pages`` that have more than one holder."""
        return sum(self.is_shared(page) for page in pages)

    def is_shared(self, page: KvPage) -> bool:
        return self._holders[page.id] > 1

    def release(self, pages: Sequence[KvPage], via: Queue) -> None:
        """Remove one holder of each page; pages without a holder are freed on the queue ``via``."""
        free = []
        for page in pages:
            self._holders[page.id] -= 1
            if self._holders[page.id]:
                continue
            del self._holders[page.id]
            self._live[self._origin.pop(page.id).id] -= 1
            if not page.freed:
                free.append(page)
        if free:
            self._allocate.dealloc_kvpage(via, free)
        self._close_retired()

    def retire(self, queue: Queue, *, at_once: bool = False) -> None:
        """Close ``queue``, on which no further command is issued, when none of its pages has a
        holder. ``at_once``: do not wait for its commands."""
        self._retired[queue.id] = queue, at_once
        self._close_retired()

    def _close_retired(self) -> None:
        """Close retired queues whose pages have no holder. Closing a queue cancels its commands,
        for which other contexts may wait (a fork's copy after a truncation), so it is closed after
        they have ended."""
        for queue_id in [queue_id for queue_id in self._retired if not self._live[queue_id]]:
            del self._live[queue_id]
            queue, at_once = self._retired.pop(queue_id)
            if at_once:
                self._core.close_queue(queue)
            else:
                self._close_when_dry(queue)

    def _close_when_dry(self, queue: Queue) -> None:
        command = Synchronize(id=self._issuer.command_id())
        self._issuer.submit(queue, command, lambda _: self._core.close_queue(queue))
