"""Clients that follow a response in the background, at the level of ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from quire.server.responses.following import FollowedResponse


class Connection:
    """A client that takes ``num_taken`` messages and leaves when ``gone`` is set."""

    def __init__(self, num_taken: int = 1000) -> None:
        self.taken: list[Message] = []
        self.gone = asyncio.Event()
        self._num_taken = num_taken

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if len(self.taken) == self._num_taken:
            await asyncio.Event().wait()
        self.taken.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.taken)


class Events:
    """Two events, then nothing for as long as ``more`` is not set."""

    def __init__(self) -> None:
        self.said = asyncio.Event()
        self.more = asyncio.Event()
        self.closed = asyncio.Event()

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        try:
            yield b"one "
            yield b"two "
            self.said.set()
            await self.more.wait()
            yield b"three"
        finally:
            self.closed.set()


async def follow(connection: Connection, events: Events, write_timeout_s: float = 60) -> None:
    response = FollowedResponse(events(), write_timeout_s=write_timeout_s, headers={"x-a": "b"})
    await response({"type": "http"}, connection.receive, connection.send)


async def test_it_is_sent_to_the_end() -> None:
    connection, events = Connection(), Events()
    events.more.set()
    await follow(connection, events)
    assert connection.body == b"one two three"
    assert (b"x-a", b"b") in connection.taken[0]["headers"]
    assert connection.taken[-1]["more_body"] is False


@pytest.mark.parametrize("num_taken", [0, 2])
async def test_who_takes_nothing_is_let_go(num_taken: int) -> None:
    connection = Connection(num_taken)
    async with asyncio.timeout(60):
        await follow(connection, Events(), write_timeout_s=0.01)
    assert len(connection.taken) == num_taken


async def test_waiting_for_an_event_is_no_slow_reading() -> None:
    connection, events = Connection(), Events()
    following = asyncio.create_task(follow(connection, events, write_timeout_s=1e-9))
    await events.said.wait()
    for _ in range(100):  # the limit, next to nothing, is looked at in each
        await asyncio.sleep(0)
    events.more.set()
    await following
    assert connection.body == b"one two three"


async def test_who_leaves_is_let_go_at_once() -> None:
    connection, events = Connection(), Events()
    following = asyncio.create_task(follow(connection, events))
    await events.said.wait()
    connection.gone.set()
    await following
    assert events.closed.is_set()
