"""Sends an answer to its client, whole or as events, and cancels it when the client disconnects.

Owns the response's life. Nothing is sent before the first chunk, so that a refused call has its own
status. A client that disconnects or reads too slowly ends the calls. The request's observer is
notified of exactly one end. Must not know what the bytes mean; a ``Formatter`` makes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.core.errors import EngineLost, QuireError
from quire.programs.builtin import ChoiceChunk
from quire.server.answers.disconnects import raise_failure, while_connected
from quire.server.answers.generation import GenerationStream, PromptChunk
from quire.server.answers.resuming.going_on import ResumableAnswer
from quire.server.answers.resuming.told_tokens import ENGINE_LOST
from quire.server.answers.resuming.told_whole import told_failure, told_whole
from quire.server.answers.write_limit import SlowReader, WriteLimit
from quire.server.events import DATA_EVENTS, EVENT_HEADERS, EventStyle
from quire.server.requests.observation import RequestObserver

logger = logging.getLogger(__name__)

_MAX_SCORED_AT_ONCE = 128
"""Tokens with log probabilities that are formatted on the loop. Each has up to 21 figures, of some
microseconds: those of a long prompt are formatted in a thread, and others are served meanwhile."""


class Formatter(Protocol):
    """Turns the chunks of one request into bodies. It receives every chunk, in order."""

    def feed(self, item: PromptChunk) -> Sequence[bytes]:
        """Return the events of ``item`` for a streaming client (none for a whole answer); the API's
        ``EventStyle`` frames them later."""
        ...

    def last_events(self) -> Sequence[bytes]:
        """Return the events after the last chunk: the usage, if it was requested."""
        ...

    def whole(self) -> bytes:
        """Return the JSON body of an answer that is not streamed."""
        ...


class GenerationResponse(Response):
    """Runs ``generation`` while the client is connected.

    ``write_timeout_s`` limits each write: the server buffers 64 KiB per connection and then makes
    the writer wait, so a slow reader delays the calls, and after this time ends them.
    ``on_finished`` is called after a complete answer, before its last bytes are sent. ``style``:
    how the formatter's events are framed. ``telling``: adds, after each chunk but the last, what a
    router needs to continue the answer at another node; a whole answer is then sent as
    ``told_whole`` describes.
    """

    def __init__(
        self,
        generation: GenerationStream,
        formatter: Formatter,
        observer: RequestObserver,
        *,
        stream: bool,
        write_timeout_s: float,
        on_finished: Callable[[], None],
        headers: dict[str, str],
        style: EventStyle = DATA_EVENTS,
        telling: ResumableAnswer | None = None,
    ) -> None:
        is_told = stream or telling is not None
        super().__init__(
            headers={**EVENT_HEADERS, **headers} if is_told else headers,
            media_type="text/event-stream" if is_told else "application/json",
        )
        del self.headers["content-length"]  # that of the empty body; the real length is set later
        self._generation = generation
        self._formatter = formatter
        self._observer = observer
        self._stream = stream
        self._writes = WriteLimit(write_timeout_s)
        self._on_finished = on_finished
        self._style = style
        self._telling = telling

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Deliver the answer. Raises the call's ``QuireError`` if nothing has been sent yet."""
        # a token's event need not pass the middlewares, which look at the start of a response alone
        self._send_body: Send = scope.get("state", {}).get("send_body", send)
        if self._stream or self._telling is not None:
            work = asyncio.create_task(self._deliver_stream(scope, receive, send))
        else:
            work = asyncio.create_task(self._deliver_whole(send))
        try:
            await while_connected(work, receive, writes=self._writes, on_cancel=self._give_up)
        finally:
            self._end_failed(work)
        raise_failure(work)

    def _give_up(self, has_disconnected: bool) -> None:
        """End the calls before the answer is complete."""
        reason = "the client has disconnected" if has_disconnected else "the server is stopping"
        self._generation.cancel(reason)
        is_told = self._stream or self._telling is not None  # else the end alone tells tokens
        self._observer.end("aborted", reason=reason, tokens_known=is_told)

    def _end_failed(self, work: asyncio.Task[None]) -> None:
        """End the calls if ``work`` has failed."""
        error = work.exception() if work.done() and not work.cancelled() else None
        if isinstance(error, SlowReader):
            self._generation.cancel(str(error))
            self._observer.end("aborted", reason=str(error))
        elif error is not None:
            self._generation.cancel("the request has failed")
            self._observer.end("failed", error if isinstance(error, QuireError) else None)

    async def _deliver_whole(self, send: Send) -> None:
        is_long = False
        async with aclosing(aiter(self._generation)) as items:
            async for item in items:
                self._observer.on_chunk(item.chunk)
                is_long = is_long or _has_many_scores(item.chunk)
                await self._fed(item)
        self._finish()
        whole = self._formatter.whole
        body = await asyncio.to_thread(whole) if is_long else whole()
        headers = [*self.raw_headers, (b"content-length", str(len(body)).encode())]
        await self._write(send, body, headers=headers, more=False)

    async def _deliver_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, telling = False, self._telling
        num_running = 0 if telling is None else self._generation.num_choices
        try:
            async with aclosing(aiter(self._generation)) as items:
                async for item in items:
                    if telling is not None:
                        item = telling.placed(item)
                    self._observer.on_chunk(item.chunk)
                    events = self._events(await self._fed(item))
                    if telling is not None:
                        num_running -= item.chunk.finish_reason is not None
                        if num_running:  # the last chunk is sent with the end of the stream
                            events += telling.comment(item, is_first=not started)
                    await self._write(send, events, headers=None if started else self.raw_headers)
                    started = True
            self._finish()
            await self._write(send, self._last(), more=False)
        except QuireError as error:
            if not started:
                raise
            self._observer.end("failed", error)
            if self._stream:
                failure = b"".join(self._style.errors(error)) + self._style.done
                if telling is not None and isinstance(error, EngineLost):
                    failure = ENGINE_LOST + b"\n\n" + failure
            else:
                failure = await told_failure(error, scope, receive)
            await self._write(send, failure, more=False)

    async def _fed(self, item: PromptChunk) -> Sequence[bytes]:
        """Give ``item`` to the formatter; return its events."""
        if _has_many_scores(item.chunk):
            return await asyncio.to_thread(self._formatter.feed, item)
        return self._formatter.feed(item)

    def _events(self, payloads: Sequence[bytes]) -> bytes:
        """Return ``payloads`` framed for a streaming client; nothing for others."""
        return b"".join(map(self._style.frame, payloads)) if self._stream else b""

    def _last(self) -> bytes:
        if not self._stream:
            return told_whole(self._formatter.whole())
        return self._events(self._formatter.last_events()) + self._style.done

    def _finish(self) -> None:
        self._observer.end("finished")
        self._on_finished()

    async def _write(
        self,
        send: Send,
        body: bytes,
        *,
        headers: list[tuple[bytes, bytes]] | None = None,
        more: bool = True,
    ) -> None:
        with self._writes:
            if headers is not None:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            if body or not more:
                body_message = {"type": "http.response.body", "body": body, "more_body": more}
                await self._send_body(body_message)


def _has_many_scores(chunk: ChoiceChunk) -> bool:
    num_scored = len(chunk.logprobs or ()) + len(chunk.prompt_logprobs or ())
    return num_scored > _MAX_SCORED_AT_ONCE
