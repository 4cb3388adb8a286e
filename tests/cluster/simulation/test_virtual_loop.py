"""An event loop whose clock goes to what is due next."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from quire.cluster.simulation.virtual_loop import VirtualLoop
from quire.core.errors import InvalidArgument
from quire.simulation.clock import VirtualClock


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    yield VirtualLoop(VirtualClock(100.0))  # type: ignore[abstract]
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_coroutines_wait_in_virtual_time_and_in_order(loop: VirtualLoop) -> None:
    told: list[tuple[float, str]] = []

    async def wait(name: str, seconds: float) -> str:
        await asyncio.sleep(seconds)
        told.append((loop.time(), name))
        return name

    async def work() -> tuple[str, str, str]:
        return await asyncio.gather(wait("a", 7200.0), wait("b", 3600.0), wait("c", 3600.0))

    assert list(loop.run(work())) == ["a", "b", "c"]
    assert told == [(3700.0, "b"), (3700.0, "c"), (7300.0, "a")]


def test_timeouts_and_cancellation_work_as_anywhere(loop: VirtualLoop) -> None:
    ended: list[float] = []

    async def patient() -> None:
        try:
            await asyncio.sleep(50)
        finally:
            ended.append(loop.time())

    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(20):
                await patient()
        task = asyncio.create_task(patient())
        await asyncio.sleep(10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    loop.run(work())
    assert ended == [120.0, 130.0]


def test_what_is_still_running_at_the_end_is_cancelled(loop: VirtualLoop) -> None:
    cancelled = []

    async def forever() -> None:
        try:
            for _ in range(1000):
                await asyncio.sleep(1)
        except asyncio.CancelledError:
            cancelled.append(loop.time())
            raise

    async def work() -> None:
        task = asyncio.create_task(forever())
        await asyncio.sleep(2.5)
        assert not task.done()

    loop.run(work())
    assert cancelled == [102.5]


def test_what_waits_for_something_outside_is_refused(loop: VirtualLoop) -> None:
    async def work() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(InvalidArgument, match="nothing is left to happen"):
        loop.run(work())


def test_the_error_of_the_work_and_of_a_callback_ends_the_run(loop: VirtualLoop) -> None:
    async def work() -> None:
        raise KeyError("work")

    with pytest.raises(KeyError, match="work"):
        loop.run(work())

    def fail() -> None:
        raise KeyError("callback")

    async def calls() -> None:
        loop.call_later(1.0, fail)
        await asyncio.sleep(5)

    with pytest.raises(KeyError, match="callback"):
        loop.run(calls())
