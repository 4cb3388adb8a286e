"""Work queues: messages between the programs of a tenant, each for one receiver.

Owns the waiting messages, their bound and their time to live. A queue exists while it has messages
or waiting callers. Thread-safe, because programs live on several loops. Must not know who may use
which queue.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass, field

from quire.core.errors import InvalidArgument, QuotaExceeded
from quire.core.ids import TenantId
from quire.core.interfaces import Clock
from quire.programs.services.names import check_message, check_name
from quire.programs.services.waiting import Waiters


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """``max_messages``: those in one queue. ``max_queues``: queues of one tenant that hold
    messages; ``max_bytes``: bytes in all of them, including messages of waiting ``push`` calls."""

    max_messages: int = 1024
    max_queues: int = 1024
    max_bytes: int = 64 << 20
    max_message_bytes: int = 1 << 20
    max_ttl_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    text: str
    num_bytes: int
    expires_s: float


@dataclass(slots=True)
class _Queue:
    messages: deque[_Waiting] = field(default_factory=deque)
    takers: Waiters = field(default_factory=Waiters)
    givers: Waiters = field(default_factory=Waiters)
    soonest_s: float = math.inf
    """No message expires before this time."""
    num_waiting: int = 0
    """Waiting ``pull`` and ``push`` calls, which keep the queue alive."""


@dataclass(slots=True)
class _Tenant:
    queues: dict[str, _Queue] = field(default_factory=dict)
    num_bytes: int = 0


class WorkQueues:
    """All work queues of a node, separate for each tenant."""

    def __init__(self, clock: Clock, limits: QueueLimits | None = None) -> None:
        self.limits = limits or QueueLimits()
        self._clock = clock
        self._lock = threading.Lock()
        self._tenants: dict[TenantId, _Tenant] = {}

    async def push(self, tenant: TenantId, queue: str, message: str, ttl_s: float = 3600.0) -> None:
        """Append ``message``; wait while the queue has ``max_messages``.

        A message that is not taken within ``ttl_s`` seconds is dropped.

        Raises:
            InvalidArgument: an invalid name, not text, too long, or a time to live out of its
                bounds.
            QuotaExceeded: the tenant has too many queues, or they hold too much.
        """
        check_name("queue", queue)
        num_bytes = check_message("push", message, self.limits.max_message_bytes)
        if not 0 < ttl_s <= self.limits.max_ttl_s:
            raise InvalidArgument(
                f"push with a time to live of {ttl_s} s: choose more than 0 and at most "
                f"{self.limits.max_ttl_s:g}"
            )
        counted_by: _Tenant | None = None
        try:
            while True:
                with self._lock:
                    found = self._queue(tenant, queue)
                    self._drop_expired(tenant, found)
                    if counted_by is not self._tenants[tenant]:
                        self._check_room(tenant, queue, num_bytes)
                        counted_by = self._tenants[tenant]
                        counted_by.num_bytes += num_bytes
                    if len(found.messages) < self.limits.max_messages:
                        counted_by = None  # now counted as the queue's message
                        expires_s = self._clock.now_s() + ttl_s
                        found.messages.append(_Waiting(message, num_bytes, expires_s))
                        found.soonest_s = min(found.soonest_s, expires_s)
                        found.takers.wake()
                        return
                    future = found.givers.add()
                    found.num_waiting += 1
                try:
                    await future
                finally:
                    self._left(tenant, queue, found)
        finally:
            if counted_by is not None:
                with self._lock:
                    counted_by.num_bytes -= num_bytes

    async def pull(self, tenant: TenantId, queue: str) -> str:
        """Take the oldest message; wait for one. No other caller gets it.

        Raises:
            InvalidArgument: an invalid name.
        """
        check_name("queue", queue)
        while True:
            with self._lock:
                found = self._queue(tenant, queue)
                self._drop_expired(tenant, found)
                if found.messages:
                    taken = found.messages.popleft()
                    self._tenants[tenant].num_bytes -= taken.num_bytes
                    found.givers.wake()
                    self._forget_if_idle(tenant, queue, found)
                    return taken.text
                future = found.takers.add()
                found.num_waiting += 1
            try:
                await future
            finally:
                self._left(tenant, queue, found)

    def put_back(self, tenant: TenantId, queue: str, message: str) -> None:
        """Make a pulled message that has not reached its receiver the queue's first message again.

        Its place may be taken, so it is admitted beyond the bounds; up to twice the bounds, because
        a guest may claim to have pulled any message.

        Raises:
            QuotaExceeded: twice the bounds are reached.
        """
        check_name("queue", queue)
        num_bytes = check_message("push", message, self.limits.max_message_bytes)
        with self._lock:
            found = self._queue(tenant, queue)
            owner = self._tenants[tenant]
            held, limits = owner.num_bytes, self.limits
            is_crowded = (
                len(found.messages) >= 2 * limits.max_messages
                or len(owner.queues) > 2 * limits.max_queues
            )
            if is_crowded or held + num_bytes > 2 * limits.max_bytes:
                self._forget_if_idle(tenant, queue, found)
                raise QuotaExceeded(
                    f"a message of {num_bytes} bytes cannot be put back into queue {queue!r} with "
                    f"{len(found.messages)} messages ({held} bytes in all queues of this tenant), "
                    "which is twice what may be pushed: pull some first",
                    max_bytes=self.limits.max_bytes,
                )
            expires_s = self._clock.now_s() + self.limits.max_ttl_s
            found.messages.appendleft(_Waiting(message, num_bytes, expires_s))
            found.soonest_s = min(found.soonest_s, expires_s)
            self._tenants[tenant].num_bytes += num_bytes
            found.takers.wake()

    def num_messages(self, tenant: TenantId, queue: str) -> int:
        """The number of messages, expired ones included."""
        with self._lock:
            owner = self._tenants.get(tenant)
            found = None if owner is None else owner.queues.get(queue)
            return 0 if found is None else len(found.messages)

    # -- inside; the lock is held --------------------------------------------------------------

    def _queue(self, tenant: TenantId, queue: str) -> _Queue:
        owner = self._tenants.setdefault(tenant, _Tenant())
        return owner.queues.setdefault(queue, _Queue())

    def _drop_expired(self, tenant: TenantId, queue: _Queue) -> None:
        now_s = self._clock.now_s()
        if now_s < queue.soonest_s:
            return
        kept = deque(message for message in queue.messages if message.expires_s > now_s)
        freed = sum(m.num_bytes for m in queue.messages) - sum(m.num_bytes for m in kept)
        self._tenants[tenant].num_bytes -= freed
        queue.messages = kept
        queue.soonest_s = min((message.expires_s for message in kept), default=math.inf)
        queue.givers.wake()

    def _check_room(self, tenant: TenantId, queue: str, num_bytes: int) -> None:
        """Drop what has expired, then raise ``QuotaExceeded`` if the message does not fit."""
        owner = self._tenants[tenant]
        if self._fits(owner, num_bytes):
            return
        for name, other in list(owner.queues.items()):
            self._drop_expired(tenant, other)
            if name != queue:
                self._forget_if_idle(tenant, name, other)
        if self._fits(owner, num_bytes):
            return
        error = QuotaExceeded(
            f"push of {num_bytes} bytes: {owner.num_bytes} bytes wait in {len(owner.queues)} queues"
            f" of this tenant; at most {self.limits.max_bytes} bytes in {self.limits.max_queues} "
            "queues are allowed: pull some first",
            max_bytes=self.limits.max_bytes,
            max_queues=self.limits.max_queues,
        )
        self._forget_if_idle(tenant, queue, owner.queues[queue])
        raise error

    def _fits(self, owner: _Tenant, num_bytes: int) -> bool:
        within = owner.num_bytes + num_bytes <= self.limits.max_bytes
        return within and len(owner.queues) <= self.limits.max_queues

    def _left(self, tenant: TenantId, name: str, queue: _Queue) -> None:
        with self._lock:
            queue.num_waiting -= 1
            self._forget_if_idle(tenant, name, queue)

    def _forget_if_idle(self, tenant: TenantId, name: str, queue: _Queue) -> None:
        """Remove a queue without messages and waiting calls, and a tenant without queues."""
        owner = self._tenants.get(tenant)
        if owner is None or owner.queues.get(name) is not queue:
            return
        if queue.messages or queue.num_waiting:
            return
        del owner.queues[name]
        if not owner.queues:
            del self._tenants[tenant]
