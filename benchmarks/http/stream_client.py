"""Streams over HTTP with little overhead: many concurrent requests, of which only the times of
events are kept.

Counts server-sent events without parsing them, so that on a small machine the client does not take
processor time from the server that it measures. Works with any OpenAI-compatible server, and
measures all of them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_EVENT = b"data: "
_LAST_EVENT = b"data: [DONE]"


@dataclass(slots=True)
class Streamed:
    """One answer. ``event_s``: when each event arrived, from the start of its request; an event is
    one ``data:`` line, [DONE] and events without a token (role, usage) included."""

    start_s: float
    event_s: list[float] = field(default_factory=list)
    status: int = 0
    num_bytes: int = 0

    @property
    def end_s(self) -> float:
        return self.start_s + self.event_s[-1]


class _Connection(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, request: bytes, done: asyncio.Future[Streamed]) -> None:
        self._request = request
        self._done = done
        self._tail = b""
        self._head = b""
        self.answer = Streamed(time.perf_counter())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.answer.start_s = time.perf_counter()
        transport.write(self._request)

    def data_received(self, received: bytes) -> None:
        answer = self.answer
        if not answer.status:
            self._head += received[:16]
            answer.status = int((self._head + b"HTTP/1.1 000")[9:12])
        answer.num_bytes += len(received)
        # a marker may be split between two reads, so keep what may be the start of one
        text = self._tail + received
        count = text.count(_EVENT)
        if count:
            answer.event_s += [time.perf_counter() - answer.start_s] * count
            self._tail = text[text.rindex(_EVENT) + len(_EVENT) :][-len(_LAST_EVENT) :]
        else:
            self._tail = text[-len(_LAST_EVENT) :]
        if _LAST_EVENT in text and not self._done.done():
            self._done.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            text = f"the server closed the connection: status {self.answer.status}, {self._tail!r}"
            self._done.set_exception(ConnectionError(text))


def completion_body(model: str, prompt: Sequence[int], num_tokens: int) -> bytes:
    """Return the body of a greedy streamed completion of exactly ``num_tokens`` tokens."""
    fields = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    return json.dumps(fields).encode()


async def stream(url: str, body: bytes) -> Streamed:
    """POST ``body`` to ``url`` and read the events to the end.

    Raises:
        ConnectionError: the server refused, or closed before [DONE].
    """
    parts = urlsplit(url)
    head = (
        f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    assert parts.hostname is not None
    assert parts.port is not None
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Streamed] = loop.create_future()
    transport, _ = await loop.create_connection(
        lambda: _Connection(head.encode() + body, done), parts.hostname, parts.port
    )
    try:
        return await done
    finally:
        transport.close()


async def stream_all(url: str, bodies: Sequence[bytes]) -> list[Streamed]:
    """POST all bodies concurrently."""
    return list(await asyncio.gather(*(stream(url, body) for body in bodies)))
