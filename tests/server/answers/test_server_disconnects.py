"""What ends first: work, its client's connection, or the time that it may take."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.server.answers.disconnects import raise_failure, while_connected
from quire.server.answers.write_limit import SlowReader


class Client:
    """A client that sends a late body and stays until it ``leaves``."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()
        self._messages = [{"type": "http.request", "body": b"late"}]

    async def receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop()
        await self.leaves.wait()
        return {"type": "http.disconnect"}


async def forever() -> None:
    await asyncio.Event().wait()


async def test_work_that_ends_is_not_cancelled() -> None:
    async def answers() -> int:
        await asyncio.sleep(0)
        return 7

    work, told = asyncio.create_task(answers()), list[bool]()
    assert await while_connected(work, Client().receive, on_cancel=told.append) == "ended"
    assert work.result() == 7
    assert told == []


async def test_a_client_that_leaves_ends_the_work() -> None:
    client, told = Client(), list[tuple[bool, bool]]()
    work = asyncio.create_task(forever())
    client.leaves.set()
    outcome = await while_connected(
        work, client.receive, on_cancel=lambda left: told.append((left, work.done()))
    )
    assert outcome == "disconnected"
    assert told == [(True, False)], "it is told before the work is cancelled"
    assert work.cancelled()


@pytest.mark.parametrize("watched", [True, False])
async def test_time_ends_the_work_of_a_client_that_stays(watched: bool) -> None:
    work, told = asyncio.create_task(forever()), list[bool]()
    receive = Client().receive if watched else None
    outcome = await while_connected(work, receive, limit_s=0.0, on_cancel=told.append)
    assert (outcome, told, work.cancelled()) == ("timeout", [False], True)


async def test_a_cancelled_caller_ends_the_work_first() -> None:
    work, told = asyncio.create_task(forever()), list[bool]()
    caller = asyncio.create_task(while_connected(work, Client().receive, on_cancel=told.append))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (told, work.cancelled()) == ([False], True)


@pytest.mark.parametrize("error", [SlowReader("slow"), ValueError("wrong")])
async def test_a_failure_is_raised_if_there_is_somebody_to_tell(error: Exception) -> None:
    async def fails() -> None:
        raise error

    work = asyncio.create_task(fails())
    assert await while_connected(work, None) == "ended"
    if isinstance(error, SlowReader):
        raise_failure(work)
    else:
        with pytest.raises(ValueError, match="wrong"):
            raise_failure(work)
