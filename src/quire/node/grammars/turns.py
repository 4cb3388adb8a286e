"""Chooses whose task runs next among tenants that wait for a few workers.

``TenantTurns`` is a pure table: no I/O, no clock, no locks. ``work_off`` is what its workers do.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from quire.core.errors import QuotaExceeded
from quire.core.ids import TenantId

Task = TypeVar("Task")


class TenantTurns(Generic[Task]):
    """Tenants take turns; each may have ``max_running`` running and ``max_waiting`` waiting
    tasks. ``what``: what a task is for, in the plural."""

    def __init__(self, max_running: int, max_waiting: int, what: str) -> None:
        self._what = what
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._lines: OrderedDict[TenantId, deque[Task]] = OrderedDict()
        self._running: Counter[TenantId] = Counter()

    def add(self, tenant: TenantId, task: Task) -> None:
        """Add a task; raise ``QuotaExceeded`` if the tenant has too many waiting tasks."""
        line = self._lines.setdefault(tenant, deque())
        if len(line) >= self._max_waiting:
            raise QuotaExceeded(
                f"{len(line)} {self._what} of this tenant wait; at most {self._max_waiting} are "
                "allowed: send them one after the other",
                max_waiting=self._max_waiting,
            )
        line.append(task)

    def take(self) -> tuple[TenantId, Task] | None:
        """The next task; its tenant goes to the end of the order. ``None`` if no task may run. Call
        ``done`` when it has ended."""
        for tenant, line in self._lines.items():
            if self._running[tenant] < self._max_running:
                task = line.popleft()
                self._running[tenant] += 1
                self._lines.move_to_end(tenant)
                if not line:
                    del self._lines[tenant]
                return tenant, task
        return None

    def done(self, tenant: TenantId) -> None:
        """Note that a task of ``tenant`` has ended."""
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]


def work_off(
    turns: TenantTurns[Task], lock: threading.Lock, run: Callable[[TenantId, Task], object]
) -> None:
    """Run every task that may run now. The others wait for a task of the same tenant, whose worker
    then takes them. ``lock`` guards ``turns``; a task runs without it."""
    while True:
        with lock:
            taken = turns.take()
        if taken is None:
            return
        tenant, task = taken
        try:
            run(tenant, task)
        finally:
            with lock:
                turns.done(tenant)
