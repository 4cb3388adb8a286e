"""Pieces of an answer reach their client in order and complete, however it reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from http_peer import Said
from router_world import World, world

from quire.core.config import ServerConfig

NUM_EVENTS, SIZE = 400, 8192


def event(number: int, size: int = SIZE) -> bytes:
    return b"data: " + str(number).encode().rjust(size, b".") + b"\n\n"


async def many(size: int = SIZE) -> AsyncIterator[bytes]:
    for number in range(NUM_EVENTS):
        yield event(number, size)
        await asyncio.sleep(0)


async def ask(w: World, version: str = "1.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(w.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 16)
    body = b'{"prompt": "x", "stream": true}'
    head = (
        f"POST /v1/completions HTTP/{version}\r\nhost: {parts.netloc}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    return reader, writer


def dechunked(received: bytes) -> bytes:
    body = b""
    while received:
        length, _, rest = received.partition(b"\r\n")
        size = int(length, 16)
        body, received = body + rest[:size], rest[size + 2 :]
        if not size:
            break
    return body


async def test_a_client_that_reads_late_gets_everything_in_order() -> None:
    async with world(1) as w:
        w.nodes[0].refusal = Said(pieces=many(), kind="text/event-stream")
        reader, writer = await ask(w)
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(2000):  # meanwhile the client's side fills up, and the node has to wait
            await asyncio.sleep(0)
        received = bytearray()
        while not received.endswith(b"0\r\n\r\n"):
            received += await reader.read(1 << 16)
        assert dechunked(bytes(received)) == b"".join(map(event, range(NUM_EVENTS)))
        writer.close()


async def test_a_client_of_http_1_0_gets_a_plain_stream() -> None:
    async with world(1) as w:
        w.nodes[0].refusal = Said(pieces=many(16), kind="text/event-stream")
        reader, writer = await ask(w, "1.0")
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.read(-1) == b"".join(event(number, 16) for number in range(NUM_EVENTS))
        writer.close()


@pytest.mark.parametrize("size", [1, 3, 7, 50])
async def test_events_that_arrive_in_parts_are_passed_on_whole(size: int) -> None:
    async def parts() -> AsyncIterator[bytes]:
        text = b"".join(event(number, 16) for number in range(20))
        for start in range(0, len(text), size):
            yield text[start : start + size]
            await asyncio.sleep(0)

    async with world(1) as w:
        w.nodes[0].refusal = Said(pieces=parts(), kind="text/event-stream")
        body = {"prompt": "x", "stream": True}
        async with w.http.stream("POST", "/v1/completions", json=body) as answer:
            pieces = [piece async for piece in answer.aiter_raw()]
        assert b"".join(pieces) == b"".join(event(number, 16) for number in range(20))
        assert all(piece.endswith(b"\n\n") for piece in pieces)


async def test_a_client_that_never_reads_is_given_up() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield event(0)
            await asyncio.sleep(0)

    async with world(1, server=ServerConfig(write_timeout_s=0.2)) as w:
        w.nodes[0].refusal = Said(pieces=endless(), kind="text/event-stream")
        _, writer = await ask(w)
        await w.nodes[0].peer.left.wait()
        assert w.router.nodes[0].num_outstanding == 0
        writer.close()
