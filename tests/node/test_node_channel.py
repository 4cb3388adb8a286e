"""The bounded channel between two loops."""

from __future__ import annotations

import asyncio
import threading

import pytest

from quire.core.errors import InvalidArgument
from quire.node.channel import Channel


class LoopThread:
    """A second event loop, as program hosts have one."""

    def __enter__(self) -> asyncio.AbstractEventLoop:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        return self.loop

    def __exit__(self, *exc: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


async def test_items_cross_loops_in_order() -> None:
    channel: Channel[int] = Channel(3)

    async def produce() -> None:
        for number in range(100):
            assert await channel.put(number)
        channel.close()

    with LoopThread() as loop:
        done = asyncio.run_coroutine_threadsafe(produce(), loop)
        assert [item async for item in channel] == list(range(100))
        await asyncio.wrap_future(done)


async def test_the_producer_waits_for_room() -> None:
    channel: Channel[str] = Channel(1)
    assert await channel.put("a")
    second = asyncio.create_task(channel.put("b"))
    await asyncio.sleep(0)
    assert not second.done()
    assert await anext(channel) == "a"
    assert await second


async def test_close_delivers_what_is_buffered_then_the_error() -> None:
    channel: Channel[str] = Channel(4)
    await channel.put("a")
    channel.close(InvalidArgument("no"))
    channel.close()  # the first call decides
    assert not await channel.put("late")
    assert await anext(channel) == "a"
    with pytest.raises(InvalidArgument, match="no"):
        await anext(channel)


async def test_discard_frees_a_waiting_producer_and_a_waiting_consumer() -> None:
    channel: Channel[str] = Channel(1)
    await channel.put("a")
    producer = asyncio.create_task(channel.put("b"))
    await asyncio.sleep(0)
    channel.discard()
    assert not await producer
    with pytest.raises(StopAsyncIteration):
        await anext(channel)


async def test_a_producer_whose_reader_loop_has_closed_is_not_hurt() -> None:
    channel: Channel[str] = Channel(2)
    with LoopThread() as loop:
        reading = asyncio.run_coroutine_threadsafe(channel.__anext__(), loop)
        # what was posted first runs first: behind this, the reader waits
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop))
        del reading
        tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    assert await channel.put("nobody reads this")
