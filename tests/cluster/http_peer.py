"""A small HTTP/1.1 server on the test's loop, whose answers the test writes and may break off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import httptools
import msgspec

from quire.server.requests.strict_json import GENERATED_HEADER


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that has arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def json(self) -> dict[str, Any]:
        return msgspec.json.decode(self.body[len(self.told) :], type=dict[str, Any])

    @property
    def told(self) -> bytes:
        """What a router says was generated elsewhere, before the body."""
        return self.body[: int(self.headers.get(GENERATED_HEADER, 0))]


class Cut(Exception):
    """Raised by an answer to close its connection where it stands."""


@dataclass(frozen=True, slots=True)
class Said:
    """An answer: a whole ``body``, or the ``pieces`` of a chunked one."""

    status: int = 200
    body: bytes = b""
    pieces: AsyncIterator[bytes] | None = None
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


Answerer = Callable[[Asked], Awaitable[Said]]


def said(value: object, status: int = 200) -> Said:
    return Said(status, msgspec.json.encode(value))


def refused(status: int, code: str, message: str) -> Said:
    return said({"error": {"message": message, "type": "x", "param": None, "code": code}}, status)


class HttpPeer:
    """``async with HttpPeer(answer) as peer``. ``num_left``: clients that went away while their
    answer was being made or sent."""

    def __init__(self, answer: Answerer) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._open: set[_Connection] = set()
        self.num_connections = 0
        self.num_left = 0
        self.left = asyncio.Event()

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        self._port = 0
        await self.listen()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.die()

    async def listen(self) -> None:
        """On the same port as before."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def die(self) -> None:
        """As a killed process: nobody listens, every connection breaks."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._open):
            connection.transport.abort()
        await asyncio.sleep(0)


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, peer: HttpPeer) -> None:
        self._peer = peer
        self._parser = httptools.HttpRequestParser(self)
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._peer._open.add(self)
        self._peer.num_connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer._open.discard(self)
        if self._task is not None and not self._task.done():
            self._task.cancel()
            self._peer.num_left += 1
            self._peer.left.set()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._target, self._headers, self._body = b"", {}, b""

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        target = self._target.decode("latin-1")
        assert not urlsplit(target).netloc
        asked = Asked(self._parser.get_method().decode(), target, self._headers, self._body)
        self._task = asyncio.ensure_future(self._say(asked))

    async def _say(self, asked: Asked) -> None:
        try:
            answer = await self._peer._answer(asked)
            head = f"HTTP/1.1 {answer.status} X\r\ncontent-type: {answer.kind}\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
            if answer.pieces is None:
                head += f"content-length: {len(answer.body)}\r\n\r\n"
                body = b"" if asked.method == "HEAD" else answer.body
                self.transport.write(head.encode() + body)
                return
            self.transport.write(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
            async for piece in answer.pieces:
                self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.transport.write(b"0\r\n\r\n")
        except Cut:
            self.transport.abort()
