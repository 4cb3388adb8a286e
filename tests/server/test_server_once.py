"""Requests under a ``request_id``: each is carried out once, however many others come."""

from __future__ import annotations

import asyncio

import pytest

from quire.core.ids import TenantId
from quire.server.microserving import once
from quire.server.microserving.once import OnceByRequest

TENANT = TenantId("default")


async def test_one_that_runs_is_not_carried_out_again_however_many_end_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(once, "MAX_REMEMBERED", 2)
    requests, may_end, num_begun = OnceByRequest(), asyncio.Event(), 0

    async def long() -> int:
        nonlocal num_begun
        num_begun += 1
        await may_end.wait()
        return num_begun

    async def short() -> int:
        return 0

    def asked_again() -> asyncio.Task[int]:
        return asyncio.create_task(requests.do(TENANT, "route", "long", b"", long))

    first = asked_again()
    await asyncio.sleep(0)
    for number in range(4):
        await requests.do(TENANT, "route", f"short {number}", b"", short)
    second = asked_again()
    await asyncio.sleep(0)
    may_end.set()
    assert (await first, await second) == (1, 1)


async def test_an_answer_is_kept_and_a_failure_is_not() -> None:
    requests, outcomes = OnceByRequest(), [ValueError("no"), 1, 2]

    async def work() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, ValueError):
            raise outcome
        return outcome

    with pytest.raises(ValueError, match="no"):
        await requests.do(TENANT, "route", "one", b"", work)
    found = [await requests.do(TENANT, "route", "one", b"", work) for _ in range(2)]
    assert found == [1, 1]
