"""Waking another loop: seldom, and never too seldom."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator

import pytest

from quire.node.loops import LONG_TURN_S, Bell, LoopCalls, Wake


class Consumer:
    """A loop on a thread of its own that takes numbers out of a deque when it is woken."""

    def __init__(self) -> None:
        self.inbox: deque[int] = deque()
        self.taken: list[int] = []
        self.num_turns = 0
        self.now_s = 0.0
        self.wake = Wake(self._take, lambda: self.now_s)
        self._more = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.wake.begin(self._loop)

    def _take(self) -> None:
        with self._more:
            self.num_turns += 1
            while self.inbox:
                self.taken.append(self.inbox.popleft())
            self._more.notify()

    def put(self, number: int) -> None:
        self.inbox.append(number)
        self.wake.ring()

    def wait(self, count: int) -> list[int]:
        with self._more:
            assert self._more.wait_for(lambda: len(self.taken) >= count, timeout=60)
        return self.taken

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    made = Consumer()
    yield made
    made.close()


def test_a_turn_wakes_at_most_twice(consumer: Consumer) -> None:
    async def produce() -> None:
        for number in range(1000):
            consumer.put(number)

    asyncio.run(produce())
    assert consumer.wait(1000) == list(range(1000))
    assert consumer.num_turns <= 2


def test_what_is_left_does_not_wait_for_the_end_of_a_long_turn(consumer: Consumer) -> None:
    async def produce() -> None:
        consumer.put(0)
        consumer.wait(1)
        consumer.put(1)
        consumer.now_s += 2 * LONG_TURN_S
        consumer.put(2)
        assert consumer.wait(3) == [0, 1, 2]
        consumer.put(3)

    asyncio.run(produce())
    assert consumer.wait(4) == [0, 1, 2, 3]


def test_every_turn_of_a_producer_is_heard(consumer: Consumer) -> None:
    async def produce() -> None:
        for number in range(200):
            consumer.put(2 * number)
            consumer.put(2 * number + 1)
            await asyncio.sleep(0)

    asyncio.run(produce())
    assert consumer.wait(400) == list(range(400))


def test_threads_without_a_loop_wake_too(consumer: Consumer) -> None:
    threads = [threading.Thread(target=consumer.put, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(consumer.wait(20)) == list(range(20))


def test_a_producers_loop_that_closed_within_its_turn_is_forgotten(consumer: Consumer) -> None:
    first = asyncio.new_event_loop()
    first.call_soon(consumer.put, 1)
    first.call_soon(first.stop)
    first.run_forever()
    first.close()

    async def produce() -> None:
        consumer.put(2)

    asyncio.run(produce())
    assert consumer.wait(2) == [1, 2]


def test_what_was_left_before_the_loop_was_there_is_taken() -> None:
    taken: list[str] = []
    loop = asyncio.new_event_loop()
    wake = Wake(lambda: taken.append("woken"))
    wake.ring()
    wake.begin(loop)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert taken == ["woken"]


async def test_calls_are_made_in_order_and_one_that_fails_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls, made, done = LoopCalls(), list[int](), asyncio.Event()
    calls.soon(lambda: made.append(1))  # before there is a loop
    calls.begin(asyncio.get_running_loop())

    def fail() -> None:
        raise ValueError("on purpose")

    def leave() -> None:
        for call in (fail, lambda: made.append(2), done.set):
            calls.soon(call)

    thread = threading.Thread(target=leave)
    thread.start()
    await done.wait()
    thread.join()
    assert made == [1, 2]
    assert "on purpose" in caplog.text


async def test_a_bell_wakes_all_who_wait_and_forgets_who_left() -> None:
    bell = Bell()
    staying, leaving = (asyncio.create_task(bell.wait()) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    bell.ring()
    await staying
    assert not bell._waiting
