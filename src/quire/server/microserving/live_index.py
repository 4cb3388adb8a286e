"""``/v1/microserving/index`` as server-sent events: readers that keep a copy of the prefix indexes.

Owns when readers look, the form of the events, and their largest size. Only how far a reader has
read is kept for it: a slow reader gets fewer and fuller events, or the whole index again.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence

import msgspec

from quire.control import EngineIndex, IndexPlace
from quire.core.errors import QuotaExceeded
from quire.core.ids import EngineId
from quire.server.answers.event_stream import HEARTBEAT, EventStream
from quire.server.events import DATA_EVENTS, data_event
from quire.server.microserving.index_event import IndexEvent

INTERVAL_S = 0.1
"""Time between two looks of a reader."""

HEARTBEAT_S = 2.0
"""After this time without an event a comment is sent, by which the reader knows that the node
lives."""

MAX_READERS = 32
MAX_EVENT_KEYS = 1 << 15

_KEY_BYTES = 32
SHORT_KEY_BYTES = 8
"""How many of a key's 32 bytes are sent: among ten million pages, the probability that two have the
same short key is 1 in 300,000."""

Look = Callable[[Mapping[EngineId, IndexPlace]], Sequence[EngineIndex]]


class LiveIndex:
    """The readers of one node's indexes. ``look`` and ``is_over`` (whether the node has stopped)
    are functions of the node. Belongs to the loop that serves."""

    def __init__(
        self,
        look: Look,
        is_over: Callable[[], bool],
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        max_readers: int = MAX_READERS,
        max_event_keys: int = MAX_EVENT_KEYS,
    ) -> None:
        self._look = look
        self._is_over = is_over
        self._now_s = now_s
        self._sleep = sleep
        self._max_readers = max_readers
        self._max_event_keys = max_event_keys
        self.num_readers = 0

    def enter(self) -> None:
        """Count one more reader.

        Raises:
            QuotaExceeded: there are too many.
        """
        if self.num_readers >= self._max_readers:
            raise QuotaExceeded(
                f"{self._max_readers} readers follow this node's prefix indexes, the most that "
                "may: run fewer routers over it"
            )
        self.num_readers += 1

    def leave(self) -> None:
        self.num_readers -= 1

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the indexes as they are, then their changes, until the node has stopped."""
        known: dict[EngineId, IndexPlace] = {}
        spoke_s = self._now_s()
        while not self._is_over():
            for index in self._look(known):
                known[index.engine] = index.place
                for event in index_events(index, self._max_event_keys):
                    yield data_event(msgspec.json.encode(event))
                    spoke_s = self._now_s()
            if self._now_s() - spoke_s >= HEARTBEAT_S:
                yield HEARTBEAT
                spoke_s = self._now_s()
            await self._sleep(INTERVAL_S)
        yield DATA_EVENTS.done


def index_events(index: EngineIndex, max_keys: int) -> Iterator[IndexEvent]:
    """Yield ``index`` as events of at most ``max_keys`` keys. A key that was inserted and evicted
    since is among the evicted ones: the reader may have known it before."""
    changes, keys = index.changes, index.changes.keys
    short = [keys[at : at + SHORT_KEY_BYTES] for at in range(0, len(keys), _KEY_BYTES)]
    last = list(dict(zip(short, changes.are_new, strict=True)).items())
    num_parts = max(1, -(-len(last) // max_keys))
    for part in range(num_parts):
        told = last[part * max_keys : (part + 1) * max_keys]
        yield IndexEvent(
            engine=index.engine,
            model=index.model,
            epoch=index.epoch,
            content=index.content,
            page_size=index.page_size,
            since=changes.since,
            number=changes.number,
            part=part,
            num_parts=num_parts,
            inserted=packed(key for key, is_new in told if is_new),
            evicted=packed(key for key, is_new in told if not is_new),
        )


def packed(keys: Iterator[bytes]) -> str:
    """Return keys, or the beginnings of keys, as one text."""
    return b64encode(b"".join(keys)).decode()


class IndexStream(EventStream):
    """The prefix indexes of the node as an event stream."""

    def __init__(self, live: LiveIndex, write_timeout_s: float) -> None:
        super().__init__(write_timeout_s)
        self._live = live

    def opened(self) -> None:
        self._live.enter()

    def closed(self) -> None:
        self._live.leave()

    def events(self) -> AsyncGenerator[bytes, None]:
        return self._live.events()
