"""Mailboxes: order, bounds, closing, and ends that live on different threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from quire.core.errors import ConfigError, InvalidArgument, MailboxClosed, MailboxFull
from quire.programs.services.mailbox import MailboxChannel, MailboxLimits

LIMITS = MailboxLimits(capacity=2, limit=4, max_message_bytes=8)


async def test_awaiting_a_send_waits_for_room() -> None:
    channel = MailboxChannel("test", LIMITS)
    await channel.send("1")
    blocked = asyncio.ensure_future(_await(channel.send("2")))
    await asyncio.sleep(0)
    assert not blocked.done()
    assert await channel.receive() == "1"
    await blocked
    assert await channel.receive() == "2"


async def _await(sent: object) -> None:
    await sent  # type: ignore[misc]


async def test_who_does_not_wait_is_refused_at_the_bound() -> None:
    channel = MailboxChannel("test", LIMITS)
    for number in range(4):
        channel.send(str(number))
    with pytest.raises(MailboxFull, match=r"4 messages \(4 bytes\) wait"):
        channel.send("4")
    assert [await channel.receive() for _ in range(4)] == ["0", "1", "2", "3"]
    channel.send("4")
    assert len(channel) == 1


async def test_who_does_not_wait_is_refused_where_so_many_bytes_wait() -> None:
    channel = MailboxChannel("c", MailboxLimits(max_message_bytes=10, max_bytes=20))
    for text in ("x" * 10, "é" * 4):
        channel.send(text)
    with pytest.raises(MailboxFull, match=r"2 messages \(18 bytes\) wait"):
        channel.send("123")
    channel.send("12")
    assert [await channel.receive() for _ in range(2)] == ["x" * 10, "é" * 4]
    channel.send("y" * 10)


async def test_closing_delivers_what_was_sent() -> None:
    channel = MailboxChannel("test", LIMITS)
    channel.send("1")
    channel.close("done")
    channel.close("again")
    with pytest.raises(MailboxClosed, match="done"):
        channel.send("2")
    assert [message async for message in channel] == ["1"]
    with pytest.raises(MailboxClosed, match="done; there are no more"):
        await channel.receive()


async def test_closing_wakes_readers_and_writers() -> None:
    channel = MailboxChannel("test", LIMITS)
    reader = asyncio.ensure_future(channel.receive())
    await asyncio.sleep(0)
    channel.close("gone")
    with pytest.raises(MailboxClosed):
        await reader
    full = MailboxChannel("test", LIMITS)
    full.send("1")
    writer = asyncio.ensure_future(_await(full.send("2")))
    await asyncio.sleep(0)
    full.close("gone")
    await writer


async def test_cancelled_waits_lose_no_message() -> None:
    channel = MailboxChannel("test", LIMITS)
    reader = asyncio.ensure_future(channel.receive())
    await asyncio.sleep(0)
    channel.send("1")
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    assert await channel.receive() == "1"


async def test_only_text_of_bounded_size_goes_in() -> None:
    channel = MailboxChannel("test", LIMITS)
    with pytest.raises(InvalidArgument, match="9 bytes, at most 8"):
        channel.send("é" * 4 + "x")
    with pytest.raises(InvalidArgument, match=r"json\.dumps"):
        channel.send({"a": 1})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="capacity 3, limit 2"):
        MailboxLimits(capacity=3, limit=2)


async def test_a_message_crosses_threads() -> None:
    channel = MailboxChannel("test", LIMITS)
    reader = asyncio.ensure_future(channel.receive())
    await asyncio.sleep(0)
    thread = threading.Thread(target=channel.send, args=("hi",))
    thread.start()
    assert await reader == "hi"
    thread.join()


async def test_a_reader_whose_loop_is_gone_is_no_obstacle() -> None:
    channel = MailboxChannel("test", LIMITS)

    def wait_and_leave() -> None:
        loop = asyncio.new_event_loop()
        waiting = loop.create_task(channel.receive())
        loop.run_until_complete(asyncio.sleep(0))
        waiting.cancel()
        loop.run_until_complete(asyncio.gather(waiting, return_exceptions=True))
        loop.close()

    await asyncio.to_thread(wait_and_leave)
    channel.send("1")
    assert await channel.receive() == "1"


async def test_a_reader_of_many_channels_is_called_and_takes() -> None:
    channel = MailboxChannel("test", MailboxLimits())
    calls: list[str] = []
    channel.send("1")
    channel.listen(lambda: calls.append("news"))
    channel.send("2")  # it has not taken the first: it knows already
    assert calls == ["news"]
    assert [channel.take() for _ in range(3)] == ["1", "2", None]
    channel.send("3")
    assert calls == ["news"] * 2
    channel.close("done")
    assert (calls, channel.is_over) == (["news"] * 3, False)
    assert (channel.take(), channel.is_over) == ("3", True)


async def test_a_writer_that_does_not_wait_is_called_when_enough_was_read() -> None:
    channel = MailboxChannel("test", MailboxLimits())
    calls: list[int] = []
    for text in "abcd":
        channel.send(text)
    channel.when_fewer(3, lambda: calls.append(len(channel)))
    channel.take()
    assert calls == []
    await channel.receive()
    channel.take()
    assert calls == [2]
    channel.when_fewer(3, lambda: calls.append(len(channel)))
    assert calls == [2, 1]
    channel.when_fewer(1, lambda: calls.append(-1))
    channel.close("done")
    assert calls == [2, 1, -1]
