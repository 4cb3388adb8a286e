"""A response that goes on without its client: a task of the server makes it, whoever asks reads it.

Owns the task, its end in every way, and the events for those who follow it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from quire.core.errors import QuireError
from quire.server.generation import Generation
from quire.server.observation import RequestObserver
from quire.server.responses.format import ResponseFormatter
from quire.server.schemas.responses import ResponseObject

logger = logging.getLogger(__name__)


class BackgroundRun:
    """Starts at once. ``on_finished`` is called after a complete answer, ``on_end`` when it has
    ended in whatever way.

    ``keep_events``: whether it can be followed.
    """

    def __init__(
        self,
        generation: Generation,
        formatter: ResponseFormatter,
        observer: RequestObserver,
        *,
        on_finished: Callable[[], None],
        on_end: Callable[[ResponseObject], None],
        keep_events: bool,
    ) -> None:
        self._generation = generation
        self._formatter = formatter
        self._observer = observer
        self._on_finished = on_finished
        self._on_end = on_end
        self._events: list[bytes] | None = [] if keep_events else None
        self._num_bytes = 0
        self._news = asyncio.Event()
        self._cancelled = False
        self._ended = False
        self._task = asyncio.create_task(self._run(), name="background response")

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def num_bytes(self) -> int:
        """Of the events that are kept."""
        return self._num_bytes

    @property
    def can_be_followed(self) -> bool:
        return self._events is not None

    def response(self) -> ResponseObject:
        """The response as it is now."""
        return self._formatter.response()

    def cancel(self) -> None:
        """End it; what it has said stays. Idempotent, and without effect after its end."""
        if not self._ended:
            self._cancelled = True
            self._generation.cancel("cancelled by the client")

    async def wait_ended(self) -> None:
        await asyncio.wait([self._task])

    async def follow(self, after: int) -> AsyncIterator[bytes]:
        """Its events with numbers above ``after``, those to come as they come."""
        events = self._events
        assert events is not None, "nobody may follow it"
        position = after + 1
        while True:
            news = self._news
            if position < len(events):
                yield b"".join(events[position:])
                position = len(events)
            elif self._ended:
                return
            else:
                await news.wait()

    async def _run(self) -> None:
        observer, formatter = self._observer, self._formatter
        try:
            async for item in self._generation:
                observer.on_chunk(item.chunk)
                self._tell(formatter.feed(item))
            self._on_finished()
            self._tell(formatter.last_events())
            observer.end("finished")
        except QuireError as error:
            if self._cancelled:
                self._tell(formatter.cancelled())
                observer.end("aborted", reason="cancelled by the client")
            else:
                self._tell(formatter.failed(error))
                observer.end("failed", error)
        except Exception:
            logger.exception("a background response has failed unexpectedly")
            self._generation.cancel("the response has failed")
            self._tell(formatter.failed(QuireError("an unexpected error; see the server's log")))
            observer.end("failed")
        finally:
            self._ended = True
            self._ring()
            self._on_end(formatter.response())

    def _tell(self, events: list[bytes]) -> None:
        if self._events is not None:
            self._events += events
            self._num_bytes += sum(map(len, events))
            self._ring()

    def _ring(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


__all__ = ["BackgroundRun"]
