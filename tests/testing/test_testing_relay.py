"""The relay: what passes it, late or at a rate, and what its failures look like from both ends."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from quire.core.errors import InvalidArgument
from quire.testing import Relay

MANY = bytes(range(256)) * 4096
"""More than all buffers between a client and the target take at once."""

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Target:
    """A server that says back what it hears. ``ended``: how each of its connections ended."""

    port: int = 0
    ended: list[str] = field(default_factory=list)
    heard: bytearray = field(default_factory=bytearray)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(1 << 16):
                self.heard += piece
                writer.write(piece)
                await writer.drain()
            end = "closed"
        except OSError:
            end = "reset"
        writer.close()
        async with self.changed:
            self.ended.append(end)
            self.changed.notify_all()

    async def has_ended(self, *ends: str) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.ended == list(ends))


@asynccontextmanager
async def target() -> AsyncIterator[Target]:
    made = Target()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


@asynccontextmanager
async def relayed(**options: float) -> AsyncIterator[tuple[Relay, Target]]:
    async with target() as made, Relay(("127.0.0.1", made.port), **options) as relay:
        try:
            yield relay, made
        finally:
            for writer in clients:
                writer.transport.abort()
            clients.clear()


clients: list[asyncio.StreamWriter] = []


async def connected(relay: Relay) -> Ends:
    reader, writer = await asyncio.open_connection(*relay.address)
    clients.append(writer)
    return reader, writer


def reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def echoed(ends: Ends, sent: bytes) -> bytes:
    reader, writer = ends
    writer.write(sent)
    return await reader.readexactly(len(sent))


async def test_everything_passes_both_ways_and_ends_pass_too() -> None:
    async with relayed() as (relay, made):
        reader, writer = await connected(relay)
        writer.write(MANY)
        assert await reader.readexactly(len(MANY)) == MANY
        writer.write_eof()
        assert await reader.read() == b""
        await made.has_ended("closed")
        await relay.passed_there(len(MANY))
        assert relay.num_bytes_there == relay.num_bytes_back == len(MANY)


async def test_a_delay_is_of_each_byte_and_bounds_no_rate() -> None:
    async with relayed(delay_s=0.05) as (relay, _):
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        assert await echoed(await connected(relay), MANY[: 1 << 18]) == MANY[: 1 << 18]
        # 16 pieces that waited for one another would have taken 16 delays each way
        assert loop.time() - began_s >= 0.1


async def test_a_rate_is_shared_by_all_connections() -> None:
    async with relayed(bytes_per_s=1 << 20) as (relay, _):
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        ends = [await connected(relay) for _ in range(2)]
        await asyncio.gather(*(echoed(one, MANY[: 1 << 16]) for one in ends))
        assert loop.time() - began_s >= 2 * (1 << 16) / (1 << 20)


async def test_what_is_held_comes_late_and_whole() -> None:
    async with relayed() as (relay, made):
        ends = await connected(relay)
        assert await echoed(ends, b"one") == b"one"
        relay.hold()
        ends[1].write(b"two")
        late = asyncio.create_task(ends[0].readexactly(3))
        other = await connected(relay)  # whose own target hears nothing yet
        other[1].write(b"new")
        for _ in range(50):
            await asyncio.sleep(0)
        assert bytes(made.heard) == b"one"
        relay.restore()
        assert await late == b"two"
        assert await other[0].readexactly(3) == b"new"


async def test_a_link_is_held_within_a_piece() -> None:
    async with relayed() as (relay, made):
        ends = await connected(relay)
        relay.hold(after_bytes=4)
        ends[1].write(b"one-two")
        await relay.passed_there(4)
        assert relay.state == "held"
        for _ in range(50):
            await asyncio.sleep(0)
        assert bytes(made.heard) in (b"", b"one-")
        assert relay.num_bytes_there == 4
        relay.restore()
        assert await ends[0].readexactly(7) == b"one-two"


async def test_a_link_is_held_within_what_comes_back() -> None:
    async with relayed() as (relay, made):
        ends = await connected(relay)
        relay.hold(after_bytes=4, back=True)
        ends[1].write(b"one-two")
        await relay.passed_back(4)
        assert (relay.state, relay.num_bytes_back) == ("held", 4)
        assert bytes(made.heard) == b"one-two"
        assert await ends[0].readexactly(4) == b"one-"
        relay.restore()
        assert await ends[0].readexactly(3) == b"two"


async def test_a_cut_resets_both_ends_and_who_comes_then() -> None:
    async with relayed() as (relay, made):
        ends = await connected(relay)
        assert await echoed(ends, b"one") == b"one"
        relay.cut()
        with pytest.raises(ConnectionResetError):
            await echoed(ends, b"two")
        await made.has_ended("reset")
        with pytest.raises(ConnectionResetError):
            await echoed(await connected(relay), b"three")
        assert bytes(made.heard) == b"one"
        relay.restore()
        assert await echoed(await connected(relay), b"four") == b"four"


async def test_half_open_connections_take_everything_and_say_nothing() -> None:
    async with relayed() as (relay, made):
        old = await connected(relay)
        assert await echoed(old, b"one") == b"one"
        relay.half_open()
        await made.has_ended("reset")
        new = await connected(relay)
        answers = [asyncio.create_task(echoed(ends, MANY)) for ends in (old, new)]
        done, _ = await asyncio.wait(answers, timeout=0.05)
        assert not done
        assert bytes(made.heard) == b"one"
        relay.restore()
        for answer in answers:
            with pytest.raises(ConnectionResetError):
                await answer
        assert await echoed(await connected(relay), b"two") == b"two"


async def test_a_reset_passes_as_one() -> None:
    async with relayed() as (relay, made):
        ends = await connected(relay)
        assert await echoed(ends, b"one") == b"one"
        reset(ends[1])
        await made.has_ended("reset")
        await echoed(await connected(relay), b"two")
        assert relay.num_connections == 1


async def test_without_a_target_its_clients_are_reset() -> None:
    async with target() as made:
        port = made.port
    async with Relay(("127.0.0.1", port)) as relay:
        reader, writer = await connected(relay)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.transport.abort()


def test_impossible_links_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="delay_s is -1"):
        Relay(("127.0.0.1", 1), delay_s=-1)
    with pytest.raises(InvalidArgument, match="bytes_per_s is 0"):
        Relay(("127.0.0.1", 1), bytes_per_s=0)
