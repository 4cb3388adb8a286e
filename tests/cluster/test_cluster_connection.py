"""The bytes of one exchange with a node, whatever the node sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from quire.cluster.nodes.connection import MAX_HEAD_BYTES, MAX_WAITING_BYTES, NodeConnection
from quire.core.errors import EngineLost

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class WrittenTo(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_reading_now = True
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.is_reading_now = False

    def resume_reading(self) -> None:
        self.is_reading_now = True

    def abort(self) -> None:
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing


async def opened(*, is_head: bool = False) -> tuple[NodeConnection, WrittenTo]:
    """A connection whose request is written."""
    connection, transport = NodeConnection("n"), WrittenTo()
    connection.connection_made(transport)
    await connection.send(b"GET / HTTP/1.1\r\n\r\n", b"", is_head=is_head)
    return connection, transport


async def whole(connection: NodeConnection) -> bytes:
    await connection.head()
    body = b""
    while piece := await connection.read():
        body += piece
    return body


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


async def test_an_answer_in_any_division_is_the_same() -> None:
    text = CHUNKED + chunk(b"one") + chunk(b"two") + b"0\r\n\r\n"
    for size in range(1, len(text)):
        connection, _ = await opened()
        for start in range(0, len(text), size):
            connection.data_received(text[start : start + size])
        assert (await connection.head()).get(b"transfer-encoding") == b"chunked"
        assert await connection.read() == b"onetwo"
        assert await connection.read() == b""
        assert connection.is_reusable


async def test_a_sink_gets_pieces_only_while_a_read_waits() -> None:
    """A piece that was read and is on its way to the client must not be overtaken."""
    connection, _ = await opened()
    sunk: list[bytes] = []

    def sink(piece: bytes) -> bool:
        sunk.append(piece)
        return piece != b"refused"

    connection.pass_to(sink)
    connection.data_received(CHUNKED + chunk(b"first"))
    assert await connection.read() == b"first"
    connection.data_received(chunk(b"second"))
    assert (sunk, await connection.read()) == ([], b"second")
    reading = asyncio.create_task(connection.read())
    await asyncio.sleep(0)
    connection.data_received(chunk(b"third") + chunk(b"refused") + chunk(b"fourth"))
    assert sunk == [b"third", b"refused"]
    assert await reading == b"refusedfourth"


async def test_what_waits_is_bounded() -> None:
    connection, transport = await opened()
    connection.data_received(CHUNKED)
    num_pieces = 0
    while transport.is_reading_now:
        connection.data_received(chunk(b"x" * 10_000))
        num_pieces += 1
    assert num_pieces == MAX_WAITING_BYTES // 10_000 + 1
    await connection.read()
    assert transport.is_reading_now


@pytest.mark.parametrize(
    ("received", "said"),
    [
        (b"no HTTP at all\r\n\r\n", "does not answer in HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * MAX_HEAD_BYTES, "a head of more than"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * MAX_HEAD_BYTES, "a head of more than"),
        (CHUNKED + b"zz\r\n", "does not answer in HTTP/1.1"),
    ],
)
async def test_what_is_no_answer_ends_the_connection(received: bytes, said: str) -> None:
    connection, transport = await opened()
    connection.data_received(received)
    with pytest.raises(EngineLost, match=said):
        await whole(connection)
    assert transport.is_closing()


async def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    connection, _ = await opened()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nall")
    connection.connection_lost(None)
    assert (await connection.read(), await connection.read()) == (b"all", b"")
    assert not connection.is_reusable


async def test_an_answer_that_breaks_off_is_lost() -> None:
    for received in (b"", CHUNKED, CHUNKED + chunk(b"x")):
        connection, _ = await opened()
        if received:
            connection.data_received(received)
        connection.connection_lost(ConnectionResetError("reset"))
        with pytest.raises(EngineLost, match="closed the connection"):
            await whole(connection)


async def test_an_interim_answer_is_passed_over() -> None:
    connection, _ = await opened()
    connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\n")
    connection.data_received(b"HTTP/1.1 404 X\r\ncontent-length: 2\r\n\r\nno")
    assert ((await connection.head()).status, await connection.read()) == (404, b"no")


async def test_an_answer_to_head_has_no_body() -> None:
    connection, _ = await opened(is_head=True)
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n")
    assert (await connection.head()).get(b"content-length") == b"99"
    assert await connection.read() == b""


async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    connection, transport = await opened()
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert connection.is_reusable
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    assert transport.is_closing()


REFUSED = b"HTTP/1.1 413 X\r\ncontent-length: 0\r\n\r\n"


async def test_a_connection_with_half_a_request_on_it_is_not_used_again() -> None:
    connection, transport = NodeConnection("n"), WrittenTo()
    connection.connection_made(transport)

    async def broken_off() -> AsyncIterator[bytes]:
        yield b"half"
        connection.data_received(REFUSED)
        raise ConnectionResetError("the client has left")

    with pytest.raises(ConnectionResetError):
        await connection.send(b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\n", broken_off())
    assert (await connection.head()).status == 413
    assert await whole(connection) == b""
    assert not connection.is_reusable


async def test_a_body_that_is_refused_is_sent_no_further() -> None:
    connection, transport = NodeConnection("n"), WrittenTo()
    connection.connection_made(transport)

    async def long() -> AsyncIterator[bytes]:
        yield b"one"
        connection.data_received(REFUSED)
        yield b"two"
        raise AssertionError("nobody wants the rest")

    await connection.send(b"", long())
    assert transport.written == b"one"
    assert (await connection.head()).status == 413
    assert not connection.is_reusable


async def test_a_body_in_pieces_that_is_sent_leaves_the_connection_in_use() -> None:
    connection, transport = NodeConnection("n"), WrittenTo()
    connection.connection_made(transport)

    async def short() -> AsyncIterator[bytes]:
        yield b"one"

    await connection.send(b"", short())
    connection.data_received(REFUSED)
    assert connection.is_reusable


async def test_a_connection_whose_reader_still_waits_is_not_used_again() -> None:
    connection, _ = await opened()
    connection.data_received(b"HTTP/1.1 200 X\r\ncontent-length: 2\r\n\r\n")
    reading = asyncio.create_task(connection.read())
    await asyncio.sleep(0)
    connection.data_received(b"{}")
    assert not connection.is_reusable, "the reader has not taken what has arrived"
    assert await reading == b"{}"
    assert connection.is_reusable
