"""Messages of a program to any number of clients."""

from __future__ import annotations

import asyncio

import pytest

from quire.core.errors import MailboxFull
from quire.node.programs.message_log import LogLimits, MessageLog, MessageReader


async def read(reader: MessageReader) -> list[tuple[int, str]]:
    return [(message.sequence, message.text) async for message in reader]


async def test_every_client_reads_every_message() -> None:
    log = MessageLog()
    early = asyncio.create_task(read(log.attach()))
    await log.put("a")
    await log.put("b")
    late = log.attach(after=1)
    log.close()
    assert await early == [(1, "a"), (2, "b")]
    assert await read(late) == [(2, "b")]
    assert await read(log.attach()) == [(1, "a"), (2, "b")]


async def test_with_nobody_attached_the_oldest_go_and_the_gap_shows() -> None:
    log = MessageLog(LogLimits(max_messages=2))
    for text in "abc":
        await log.put(text)
    log.close()
    assert (log.num_messages, log.num_dropped) == (3, 1)
    assert await read(log.attach()) == [(2, "b"), (3, "c")]


async def test_the_bound_counts_bytes_too() -> None:
    log = MessageLog(LogLimits(max_bytes=10))
    await log.put("x" * 6)
    await log.put("y" * 6)
    assert log.num_dropped == 1


async def test_an_attached_client_makes_the_writer_wait() -> None:
    log = MessageLog(LogLimits(max_messages=1))
    client = log.attach()
    await log.put("a")
    writer = asyncio.create_task(log.put("b"))
    await asyncio.sleep(0)
    assert not writer.done()
    assert (await anext(client)).text == "a"
    await writer
    assert (await anext(client)).text == "b"


async def test_a_stalled_client_is_detached_with_an_error() -> None:
    log = MessageLog(LogLimits(max_messages=1, stall_s=0.0))
    stalled = log.attach()
    await log.put("a")
    await log.put("b")
    with pytest.raises(MailboxFull, match="message 1"):
        await anext(stalled)


async def test_closing_a_reader_frees_the_writer_and_ends_the_iteration() -> None:
    log = MessageLog(LogLimits(max_messages=1))
    client = log.attach()
    await log.put("a")
    writer = asyncio.create_task(log.put("b"))
    await asyncio.sleep(0)
    client.close()
    client.close()
    await writer
    assert await read(client) == []
