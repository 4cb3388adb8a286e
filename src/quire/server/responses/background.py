"""A response that continues without its client: a task of the server runs it, and any client may
read it.

Owns the task, its end in every state, and the events for the clients that follow it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from quire.core.errors import QuireError
from quire.server.answers.generation import GenerationStream
from quire.server.requests.observation import RequestObserver
from quire.server.responses.format import ResponseFormatter
from quire.server.schemas.responses import ResponseObject

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of a background response; it holds the prompt and its images."""

    generation: GenerationStream
    formatter: ResponseFormatter


class BackgroundRun:
    """The run of one response, which starts at once. ``on_finished`` is called after a complete
    answer, ``on_end`` when it has ended in any way; after that only its events are kept.

    ``keep_events``: whether clients can follow it; ``on_grown`` is called when there are new
    events, and an exception of it fails the response.
    """

    def __init__(
        self,
        generation: GenerationStream,
        formatter: ResponseFormatter,
        observer: RequestObserver,
        *,
        on_finished: Callable[[], None],
        on_end: Callable[[ResponseObject], None],
        on_grown: Callable[[], None],
        keep_events: bool,
    ) -> None:
        self._work: _Work | None = _Work(generation, formatter)
        self._events: list[bytes] | None = [] if keep_events else None
        self._num_bytes = 0
        self._on_grown = on_grown
        self._news = asyncio.Event()
        self._cancelled = False
        self._task = asyncio.create_task(
            self._run(self._work, observer, on_finished, on_end), name="background response"
        )

    @property
    def ended(self) -> bool:
        return self._work is None

    @property
    def num_bytes(self) -> int:
        """Number of bytes of the kept events."""
        return self._num_bytes

    @property
    def can_be_followed(self) -> bool:
        return self._events is not None

    def response(self) -> ResponseObject:
        """Return the response in its current state, while it runs."""
        assert self._work is not None, "its end has been told to on_end"
        return self._work.formatter.response()

    def cancel(self) -> None:
        """End it; its output so far is kept. Idempotent, and without effect after its end."""
        if self._work is not None:
            self._cancelled = True
            self._work.generation.cancel("cancelled by the client")

    async def wait_ended(self) -> None:
        await asyncio.wait([self._task])

    async def follow(self, after: int) -> AsyncGenerator[bytes, None]:
        """Yield its events with numbers above ``after``, including future ones as they are made."""
        events = self._events
        assert events is not None, "nobody may follow it"
        position = after + 1
        while True:
            news = self._news
            if position < len(events):
                yield b"".join(events[position:])
                position = len(events)
            elif self.ended:
                return
            else:
                await news.wait()

    async def _run(
        self,
        work: _Work,
        observer: RequestObserver,
        on_finished: Callable[[], None],
        on_end: Callable[[ResponseObject], None],
    ) -> None:
        formatter = work.formatter
        try:
            self._tell(formatter.begin())
            async for item in work.generation:
                observer.on_chunk(item.chunk)
                self._tell(formatter.feed(item))
                self._on_grown()
            on_finished()
            self._tell(formatter.last_events())
            observer.end("finished")
        except QuireError as error:
            if self._cancelled:
                self._tell(formatter.cancelled())
                observer.end("aborted", reason="cancelled by the client")
            else:
                work.generation.cancel("the response has failed")
                self._tell(formatter.failed(error))
                observer.end("failed", error)
        except Exception:
            logger.exception("a background response has failed unexpectedly")
            work.generation.cancel("the response has failed")
            self._tell(formatter.failed(QuireError("an unexpected error; see the server's log")))
            observer.end("failed")
        finally:
            self._work = None
            self._ring()
            on_end(formatter.response())

    def _tell(self, events: list[bytes]) -> None:
        if self._events is not None:
            self._events += events
            self._num_bytes += sum(map(len, events))
            self._ring()

    def _ring(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
