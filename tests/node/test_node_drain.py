"""How long a node that stops waits for its work."""

from __future__ import annotations

import asyncio

import pytest

from quire.node.drain import Drain

LONG_S = 3600.0


async def never() -> None:
    await asyncio.Event().wait()


async def test_nothing_is_waited_for_behind_the_work() -> None:
    drain = Drain()
    drain.limit(LONG_S)
    async with asyncio.timeout(60):
        await drain.wait(asyncio.sleep(0))


@pytest.mark.parametrize("limits", [(0.0,), (LONG_S, 0.0), (0.0, LONG_S)])
async def test_the_limit_that_ends_first_holds(limits: tuple[float, ...]) -> None:
    drain = Drain()
    for limit_s in limits:
        drain.limit(limit_s)
    async with asyncio.timeout(60):
        await drain.wait(never())


async def test_a_limit_during_the_wait_cuts_it_short_and_the_work_is_let_go() -> None:
    drain = Drain()
    drain.limit(LONG_S)
    let_go = asyncio.Event()

    async def work() -> None:
        try:
            await never()
        finally:
            let_go.set()

    waiting = asyncio.create_task(drain.wait(work()))
    await asyncio.sleep(0)
    drain.limit(0.0)
    async with asyncio.timeout(60):
        await waiting
        await let_go.wait()


async def test_a_limit_after_the_wait_leaves_no_timer_behind() -> None:
    drain = Drain()
    await drain.wait(asyncio.sleep(0))
    drain.limit(LONG_S)
    assert drain._timer is None


def test_a_limit_needs_a_loop() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        Drain().limit(1.0)
