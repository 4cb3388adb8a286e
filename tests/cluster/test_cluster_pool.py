"""Which connection carries which exchange."""

from __future__ import annotations

import asyncio

import pytest
from http_peer import Asked, HttpPeer, Said, said
from router_world import until

from quire.cluster.nodes.addresses import read_address
from quire.cluster.nodes.pool import ConnectionPool, NodeExchange
from quire.core.errors import EngineLost

HEAD = b"POST / HTTP/1.1\r\nhost: n\r\ncontent-length: 2\r\n\r\n"


async def answered(asked: Asked) -> Said:
    return said({})


async def exchange(pool: ConnectionPool, *, may_repeat: bool = True) -> None:
    with await pool.send(HEAD, b"{}", may_repeat=may_repeat) as one:
        assert isinstance(one, NodeExchange)
        assert await one.read_all(100) == b"{}"


async def test_a_connection_is_used_again() -> None:
    async with HttpPeer(answered) as peer:
        pool = ConnectionPool(read_address(peer.url))
        for _ in range(3):
            await exchange(pool)
        assert (peer.num_connections, pool.num_idle, pool.num_busy) == (1, 1, 0)
        pool.close()


async def test_what_may_not_reach_a_node_twice_gets_a_new_connection() -> None:
    async with HttpPeer(answered) as peer:
        pool = ConnectionPool(read_address(peer.url))
        await exchange(pool)
        await exchange(pool, may_repeat=False)
        assert peer.num_connections == 2
        pool.close()


async def test_an_answer_that_is_too_long_is_refused_and_cancelled() -> None:
    async with HttpPeer(answered) as peer:
        pool = ConnectionPool(read_address(peer.url))
        with await pool.send(HEAD, b"{}") as one, pytest.raises(EngineLost, match="more than 1"):
            await one.read_all(1)
        pool.close()


async def test_an_exchange_that_is_failed_is_not_sent_again() -> None:
    gate = asyncio.Event()
    gate.set()
    num_asked = 0

    async def gated(asked: Asked) -> Said:
        nonlocal num_asked
        num_asked += 1
        await gate.wait()
        return said({})

    async with HttpPeer(gated) as peer:
        pool = ConnectionPool(read_address(peer.url))
        await exchange(pool)
        gate.clear()
        second = asyncio.create_task(pool.send(HEAD, b"{}"))
        await until(lambda: num_asked == 2)
        pool.fail(EngineLost("found dead"))
        with pytest.raises(EngineLost, match="found dead"):
            await second
        assert (peer.num_connections, num_asked, pool.num_busy) == (1, 2, 0)


async def test_a_node_that_cannot_be_reached_is_named() -> None:
    async with HttpPeer(answered) as peer:
        url = peer.url
    pool = ConnectionPool(read_address(f"gone={url}"))
    with pytest.raises(EngineLost, match="node gone cannot be reached"):
        await pool.send(HEAD, b"{}")


async def test_an_exchange_that_is_over_reads_nothing_of_the_next_one() -> None:
    """An answer that was ended by another task than that which reads it, as by a move."""

    async def echoing(asked: Asked) -> Said:
        return Said(body=asked.body)

    async with HttpPeer(echoing) as peer:
        pool = ConnectionPool(read_address(peer.url))
        one = await pool.send(HEAD, b"11")
        await until(lambda: one._connection.is_reusable)
        one.close()
        other = await pool.send(HEAD, b"22")
        await until(lambda: other._connection.is_reusable)
        assert peer.num_connections == 1
        one.pass_to(lambda piece: True)
        assert other._connection._sink is None
        assert [await one.read() for _ in range(3)] == [b"11", b"", b""]
        assert await other.read_all(100) == b"22"
        other.close()
        pool.close()
