"""Sends the events of many streams over one connection to a router, in place of one connection
each.

A step of the engine gives an event to every stream. Over a connection of its own each costs a write
here and a read at the router, which is most of the cost of passing it on. A router therefore opens
a channel and names it in its requests; the events of their answers are sent over it, all events of
one turn of the loop in one write.

Owns when a stream leaves its channel. An answer's own connection still carries its head, its end
and its client's disconnect, and takes over the events if the channel or the stream's client is too
slow: a stream that has left does not come back. Must not know what the events mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from starlette.types import Message, Scope, Send

from quire.core.errors import AlreadyExists, InvalidArgument, QuotaExceeded, UnknownHandle
from quire.server.answers.event_stream import EventStream
from quire.server.microserving.channel_frames import (
    CHANNEL_HEADER,
    FRAME,
    HEARTBEAT,
    HEARTBEAT_S,
    MAX_PIECE_BYTES,
    NAME_HEADER,
)

MAX_CHANNELS = 32
MIN_NAME_CHARS, MAX_NAME_CHARS = 16, 64
_MAX_NUMBER = (1 << 32) - 1
_LOOK_S = 0.5
_HEADER = CHANNEL_HEADER.encode()
_EVENTS = b"text/event-stream"


class Writer(Protocol):
    """Writes to the connection of a channel; see ``PieceWriter``."""

    @property
    def is_ready(self) -> bool: ...
    def write(self, piece: bytes) -> None: ...


class RouterChannel:
    """The channel of a router. ``streams``: those whose events are sent over it, by number."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.streams: dict[int, ChannelledSend] = {}
        self.is_open = True

    @property
    def is_ready(self) -> bool:
        """Whether the router can take a piece now."""
        return self.is_open and self._writer.is_ready

    def write(self, number: int, piece: bytes) -> None:
        """Send a piece of stream ``number``. Call it only while ``is_ready``; ``piece`` is not
        empty."""
        self._writer.write(FRAME.pack(number, len(piece)) + piece)

    def leave(self, number: int) -> None:
        """Announce that stream ``number`` goes on over its own connection; also while the router is
        slow."""
        if self.is_open:
            self._writer.write(FRAME.pack(number, 0))


class ChannelledSend:
    """The ``send`` of one answer. If the answer is a stream of events, these are sent over
    ``channel`` as stream ``number``."""

    def __init__(self, send: Send, channel: RouterChannel, number: int) -> None:
        self._send = send
        self._channel = channel
        self._number = number
        self._is_over_channel = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self._may_begin(message):
                self._is_over_channel = True
                self._channel.streams[self._number] = self
                message["headers"] = [*message["headers"], (_HEADER, b"1")]
        elif self._is_over_channel:
            channel, piece = self._channel, message.get("body", b"")
            if not channel.is_open:
                return  # the router has lost a part, and closes this connection as well
            fits = message.get("more_body", False) and len(piece) <= MAX_PIECE_BYTES
            if fits and channel.is_ready:
                if piece:
                    channel.write(self._number, piece)
                return
            self.leave()
        await self._send(message)

    def leave(self) -> None:
        """Send events over the answer's own connection from now on. Idempotent."""
        if self._is_over_channel:
            self._is_over_channel = False
            del self._channel.streams[self._number]
            self._channel.leave(self._number)

    def _may_begin(self, start: Message) -> bool:
        is_events = any(
            name == b"content-type" and value.startswith(_EVENTS)
            for name, value in start["headers"]
        )
        return is_events and self._channel.is_ready and self._number not in self._channel.streams


class Channels:
    """The channels of one application. Belongs to the loop that serves."""

    def __init__(self, max_channels: int = MAX_CHANNELS) -> None:
        self._max_channels = max_channels
        self._open: dict[str, RouterChannel] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, name: str, writer: Writer) -> RouterChannel:
        """Open a channel.

        Raises:
            InvalidArgument: ``name`` is no name of a channel.
            AlreadyExists: another channel has the name.
            QuotaExceeded: there are too many channels.
        """
        if not (MIN_NAME_CHARS <= len(name) <= MAX_NAME_CHARS and name.isalnum()):
            raise InvalidArgument(
                f"{NAME_HEADER} has to name the new channel by {MIN_NAME_CHARS} to "
                f"{MAX_NAME_CHARS} letters and digits that nobody can guess, not by "
                f"{name[:MAX_NAME_CHARS]!a}"
            )
        if name in self._open:
            raise AlreadyExists("a channel of this name is open: choose a random name")
        if len(self._open) >= self._max_channels:
            raise QuotaExceeded(
                f"{len(self._open)} routers have channels, the most that this node serves: let the "
                "events come over the requests' own connections"
            )
        self._open[name] = channel = RouterChannel(writer)
        return channel

    def close(self, name: str) -> None:
        """Close a channel. Streams that have not left end with it: it is not known how much of them
        the router has received."""
        self._open.pop(name).is_open = False

    def leave(self, name: str, number: int) -> None:
        """Have a stream leave its channel. Does nothing if the stream has ended or has not begun.

        Raises:
            UnknownHandle: there is no such channel.
        """
        channel = self._open.get(name)
        if channel is None:
            raise UnknownHandle("no such channel: it has ended, and its streams with it")
        stream = channel.streams.get(number)
        if stream is not None:
            stream.leave()

    @contextmanager
    def over(self, scope: Scope, send: Send) -> Iterator[Send]:
        """Yield the ``send`` for the request of ``scope``: over the channel that the request names,
        if that is open. The answer says over which connection its events are sent."""
        named = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        name, _, number = named.decode("latin-1").partition(".")
        channel = self._open.get(name)
        at = int(number) if number.isascii() and number.isdigit() and len(number) < 11 else 0
        if channel is None or not 0 < at <= _MAX_NUMBER:
            yield send
            return
        sending = ChannelledSend(send, channel, at)
        try:
            yield sending
        finally:  # the client may have disconnected in the middle
            sending.leave()


class ChannelStream(EventStream):
    """The connection of a channel: it carries the pieces of the streams, with heartbeats between.
    ``is_over`` returns whether the node has stopped."""

    media_type = "application/octet-stream"

    def __init__(
        self,
        channels: Channels,
        name: str,
        writer: Writer,
        write_timeout_s: float,
        is_over: Callable[[], bool],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(write_timeout_s)
        self._channels = channels
        self._name = name
        self._writer = writer
        self._is_over = is_over
        self._sleep = sleep

    def opened(self) -> None:
        self._channels.open(self._name, self._writer)

    def closed(self) -> None:
        self._channels.close(self._name)

    async def events(self) -> AsyncGenerator[bytes, None]:
        while not self._is_over():
            yield HEARTBEAT
            for _ in range(round(HEARTBEAT_S / _LOOK_S)):
                await self._sleep(_LOOK_S)
                if self._is_over():
                    return
