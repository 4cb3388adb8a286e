"""``/v1/programs/changes`` as server-sent events: readers that follow the process table.

Owns when readers look, and that the readers of one tenant share a look. Nothing is kept for a
reader: the feed returns what has changed since the reader's number, however old that is, so a slow
reader only gets fewer and fuller events.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from quire.core.errors import QuotaExceeded
from quire.core.ids import TenantId
from quire.node import NodeChanges
from quire.server.answers.event_stream import HEARTBEAT, HEARTBEAT_S, EventStream
from quire.server.events import DATA_EVENTS, data_event
from quire.server.programs.process_rows import changes_body

INTERVAL_S = 0.5
"""Time between two looks of a reader."""

MAX_READERS = 32
"""The most readers of one tenant."""


@dataclass(frozen=True, slots=True)
class Look:
    """All that has changed since one number. ``event``: the event about it. ``standing``: its part
    about the node, without programs; a reader that has received the same part gets no event unless
    there are programs."""

    number: int
    event: bytes
    has_programs: bool
    standing: tuple[object, ...]
    more: bool


class LiveChanges:
    """The readers of one node. ``changes`` and ``is_over`` (whether the node has stopped) are
    functions of the node. ``started_unix_s`` is part of the answers' numbers. Belongs to the loop
    that serves."""

    def __init__(
        self,
        changes: Callable[[int, TenantId], NodeChanges],
        is_over: Callable[[], bool],
        started_unix_s: int,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        max_readers: int = MAX_READERS,
    ) -> None:
        self._changes = changes
        self._is_over = is_over
        self._started_unix_s = started_unix_s
        self._now_s = now_s
        self._sleep = sleep
        self._max_readers = max_readers
        self._readers: Counter[TenantId] = Counter()
        self._tick = -1
        self._looks: dict[tuple[TenantId, int], Look] = {}

    def enter(self, tenant: TenantId) -> None:
        """Count one more reader of ``tenant``.

        Raises:
            QuotaExceeded: the tenant has too many.
        """
        if self._readers[tenant] >= self._max_readers:
            raise QuotaExceeded(
                f"{self._max_readers} readers follow the programs of this tenant, the most that "
                "may: close one, or ask without 'Accept: text/event-stream'"
            )
        self._readers[tenant] += 1

    def leave(self, tenant: TenantId) -> None:
        self._readers[tenant] -= 1
        if not self._readers[tenant]:
            del self._readers[tenant]
        if not self._readers:
            self._looks.clear()

    async def events(self, since: int, tenant: TenantId) -> AsyncGenerator[bytes, None]:
        """Yield what changes after number ``since``, until the node has stopped."""
        told: tuple[object, ...] = ()
        spoke_s = self._now_s()
        while True:
            is_over = self._is_over()  # read first, so that the last look includes all changes
            look = self._look(since, tenant)
            if look.has_programs or look.standing != told:
                yield look.event
                told, spoke_s = look.standing, self._now_s()
            elif self._now_s() - spoke_s >= HEARTBEAT_S:
                yield HEARTBEAT
                spoke_s = self._now_s()
            since = look.number
            if look.more:
                continue
            if is_over:
                break
            await self._sleep(INTERVAL_S - self._now_s() % INTERVAL_S)
        yield DATA_EVENTS.done

    def _look(self, since: int, tenant: TenantId) -> Look:
        """Return what has changed since ``since``. Readers wait for the same ticks, so those of a
        tenant that have read equally far ask for the same: it is made once."""
        tick = int(self._now_s() / INTERVAL_S)
        if tick != self._tick:
            self._tick = tick
            self._looks.clear()
        look = self._looks.get((tenant, since))
        if look is None:
            look = self._looks[tenant, since] = self._made(since, tenant)
        return look

    def _made(self, since: int, tenant: TenantId) -> Look:
        body = changes_body(changes := self._changes(since, tenant), self._started_unix_s)
        # while the table is empty, every answer to a new reader is whole
        is_reset = body.whole and since > 0
        return Look(
            number=changes.number,
            event=f"id: {body.next}\n".encode() + data_event(body.to_json()),
            has_programs=bool(is_reset or body.programs or body.ended),
            standing=(body.engines, body.node.ready, body.node.detail),
            more=body.more,
        )


class ChangesStream(EventStream):
    """The changes of ``tenant``'s programs after number ``since``, as an event stream."""

    def __init__(
        self, live: LiveChanges, since: int, tenant: TenantId, write_timeout_s: float
    ) -> None:
        super().__init__(write_timeout_s)
        self._live = live
        self._since = since
        self._tenant = tenant

    def opened(self) -> None:
        self._live.enter(self._tenant)

    def closed(self) -> None:
        self._live.leave(self._tenant)

    def events(self) -> AsyncGenerator[bytes, None]:
        return self._live.events(self._since, self._tenant)
