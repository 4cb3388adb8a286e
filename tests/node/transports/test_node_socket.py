"""The socket between the node and its processes: a side that reads late, a side that has gone."""

from __future__ import annotations

import asyncio

import zmq

from quire.node.transports.socket import PairSocket


class Side:
    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.more = asyncio.Event()
        self.socket = PairSocket(self._on_message)

    def _on_message(self, frames: list[bytes]) -> None:
        self.heard.extend(frames)
        self.more.set()

    async def hears(self, count: int) -> None:
        while len(self.heard) < count:
            self.more.clear()
            await self.more.wait()


async def connected() -> tuple[Side, Side]:
    bound, other = Side(), Side()
    other.socket.connect(bound.socket.open())
    other.socket.send([b"hello"])
    await bound.hears(1)
    return bound, other


async def test_a_side_that_reads_late_gets_everything_in_order() -> None:
    """It computes meanwhile: many more messages wait than ZeroMQ would keep by itself."""
    bound, other = await connected()
    messages = [number.to_bytes(4, "little") * 1024 for number in range(6000)]
    for message in messages:  # the loop does not turn, so nobody reads
        bound.socket.send([message])
        other.socket.send([message])
    await other.hears(len(messages))
    await bound.hears(1 + len(messages))
    assert other.heard == messages
    assert bound.heard[1:] == messages
    bound.socket.close()
    other.socket.close()


async def test_a_side_that_answers_while_it_reads_misses_nothing() -> None:
    bound, other = await connected()
    other.socket._on_message = other.socket.send
    for number in range(500):
        bound.socket.send([number.to_bytes(4, "little")])
        if number % 7 == 0:
            await asyncio.sleep(0)
    await bound.hears(501)
    assert bound.heard[1:] == [number.to_bytes(4, "little") for number in range(500)]
    bound.socket.close()
    other.socket.close()


async def test_a_message_that_cannot_be_taken_costs_no_other() -> None:
    bound, other = await connected()
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, why: failed.append(why))
    hear = other.socket._on_message

    def fail_once(frames: list[bytes]) -> None:
        other.socket._on_message = hear
        other.socket.send(frames)
        raise ValueError("a fault of the test")

    other.socket._on_message = fail_once
    for part in (b"first", b"second", b"third"):
        bound.socket.send([part])
    await bound.hears(2)
    await other.hears(2)
    assert other.heard == [b"second", b"third"]
    assert len(failed) == 1
    bound.socket.close()
    other.socket.close()


async def test_what_is_said_to_a_side_that_has_gone_is_dropped() -> None:
    """An engine that dies is noticed here before its end is told, and control may say something
    in between: that must not end control."""
    bound, other = await connected()
    other.socket.close()
    while bound.socket._socket.getsockopt(zmq.EVENTS) & zmq.POLLOUT:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0)  # until ZeroMQ has noticed
    bound.socket.send([b"a batch"])
    bound.socket.close()
