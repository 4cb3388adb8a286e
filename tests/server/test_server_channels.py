"""Channels of routers: what goes over them in which order, and when a stream leaves."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Message

from quire.core.errors import AlreadyExists, InvalidArgument, QuotaExceeded, UnknownHandle
from quire.server.microserving.channel_frames import (
    CHANNEL_HEADER,
    FRAME,
    HEARTBEAT,
    HEARTBEAT_S,
    MAX_PIECE_BYTES,
)
from quire.server.microserving.channels import Channels, ChannelStream

NAME = "f" * 32
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]


class Router:
    """The router's side of a channel. ``said`` has the pieces of all streams in their order."""

    def __init__(self) -> None:
        self.is_ready = True
        self.said: list[tuple[int, bytes]] = []

    def write(self, piece: bytes) -> None:
        number, size = FRAME.unpack_from(piece)
        assert size == len(piece) - FRAME.size
        self.said.append((number, piece[FRAME.size :]))


class Client:
    """What a request's own connection brings."""

    def __init__(self) -> None:
        self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.headers = message["headers"]
        else:
            self.body += message["body"]


def asking(number: int | str, name: str = NAME) -> dict[str, Any]:
    return {"headers": [(CHANNEL_HEADER.encode(), f"{name}.{number}".encode())]}


def start(headers: list[tuple[bytes, bytes]] = EVENTS) -> Message:
    return {"type": "http.response.start", "status": 200, "headers": headers}


def piece(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def opened() -> tuple[Channels, Router]:
    channels, router = Channels(), Router()
    channels.open(NAME, router)
    return channels, router


async def test_events_go_over_the_channel_and_the_end_over_the_own_connection() -> None:
    channels, router = opened()
    one, other = Client(), Client()
    with (
        channels.over(asking(1), one.send) as to_one,
        channels.over(asking(2), other.send) as to_other,
    ):
        await to_one(start())
        await to_other(start())
        await to_one(piece(b"a"))
        await to_other(piece(b"b"))
        await to_one(piece(b""))
        await to_one(piece(b"c"))
        await to_one(piece(b"end", more=False))
        await to_other(piece(b"", more=False))
    assert (CHANNEL_HEADER.encode(), b"1") in one.headers
    assert router.said == [(1, b"a"), (2, b"b"), (1, b"c"), (1, b""), (2, b"")]
    assert (one.body, other.body) == (b"end", b"")


@pytest.mark.parametrize(
    ("asked", "headers"),
    [
        (asking(1, "e" * 32), EVENTS),
        (asking(0), EVENTS),
        (asking(1 << 32), EVENTS),
        (asking("9" * 5000), EVENTS),
        (asking("²"), EVENTS),
        (asking("x"), EVENTS),
        ({"headers": []}, EVENTS),
        (asking(1), [(b"content-type", b"application/json")]),
    ],
)
async def test_other_answers_come_over_their_own_connection(
    asked: dict[str, Any], headers: list[tuple[bytes, bytes]]
) -> None:
    channels, router = opened()
    client = Client()
    with channels.over(asked, client.send) as send:
        await send(start(headers))
        await send(piece(b"all"))
    assert (client.headers, client.body, router.said) == (headers, b"all", [])


async def test_a_stream_leaves_a_router_that_does_not_read() -> None:
    channels, router = opened()
    client = Client()
    with channels.over(asking(1), client.send) as send:
        await send(start())
        await send(piece(b"a"))
        router.is_ready = False
        await send(piece(b"b"))
        router.is_ready = True
        await send(piece(b"c"))
    assert router.said == [(1, b"a"), (1, b"")]
    assert client.body == b"bc"


async def test_a_stream_with_a_long_piece_leaves() -> None:
    channels, router = opened()
    client = Client()
    longest = b"x" * MAX_PIECE_BYTES
    with channels.over(asking(1), client.send) as send:
        await send(start())
        await send(piece(longest))
        await send(piece(longest + b"x"))
    assert router.said == [(1, longest), (1, b"")]
    assert client.body == longest + b"x"


async def test_a_router_has_a_stream_leave() -> None:
    channels, router = opened()
    client = Client()
    with channels.over(asking(7), client.send) as send:
        await send(start())
        channels.leave(NAME, 7)
        channels.leave(NAME, 7)
        channels.leave(NAME, 8)
        await send(piece(b"a"))
    assert (router.said, client.body) == ([(7, b"")], b"a")
    with pytest.raises(UnknownHandle, match="no such channel"):
        channels.leave("e" * 32, 7)


async def test_a_stream_that_is_broken_off_leaves_its_number_free() -> None:
    channels, router = opened()
    with channels.over(asking(1), Client().send) as send:
        await send(start())
    with channels.over(asking(1), Client().send) as send:
        await send(start())
        with channels.over(asking(1), Client().send) as twice:  # while the first one is there
            await twice(start())
            await twice(piece(b"own"))
        await send(piece(b"a"))
    assert router.said == [(1, b""), (1, b"a"), (1, b"")]


async def test_what_is_written_after_the_channels_end_is_not_told_elsewhere() -> None:
    """The router has lost some of it, and does not know how much."""
    channels, router = opened()
    client = Client()
    with channels.over(asking(1), client.send) as send:
        await send(start())
        channels.close(NAME)
        await send(piece(b"a"))
        await send(piece(b"b", more=False))
    assert (router.said, client.body) == ([], b"")


@pytest.mark.parametrize("name", ["", "short", "f" * 65, "f" * 15 + ".1", "../" * 8])
def test_names_that_can_be_guessed_or_read_wrongly_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="x-quire-channel-name has to name"):
        Channels().open(name, Router())


def test_channels_are_bounded_and_have_one_owner() -> None:
    channels = Channels(max_channels=2)
    channels.open(NAME, Router())
    with pytest.raises(AlreadyExists, match="choose a random name"):
        channels.open(NAME, Router())
    channels.open("e" * 32, Router())
    with pytest.raises(QuotaExceeded, match="2 routers have channels"):
        channels.open("d" * 32, Router())
    channels.close(NAME)
    channels.open("d" * 32, Router())
    assert len(channels) == 2


async def test_a_channel_says_every_two_seconds_that_it_lives() -> None:
    slept_s = [0.0]

    async def sleep(seconds: float) -> None:
        slept_s[0] += seconds

    stream = ChannelStream(
        Channels(), NAME, Router(), 1.0, lambda: slept_s[0] >= 2.5 * HEARTBEAT_S, sleep
    )
    assert [event async for event in stream.events()] == [HEARTBEAT] * 3
    assert 2.5 * HEARTBEAT_S <= slept_s[0] < 3 * HEARTBEAT_S
