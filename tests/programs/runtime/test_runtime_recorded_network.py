"""A request to another host is made once, unless repeating it does nothing more there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from quire.core.errors import InvalidArgument, RequestInterrupted
from quire.programs.runtime.arrivals import ArrivalOrder
from quire.programs.runtime.recorded_network import RecordedNetwork, WholeAnswers
from quire.programs.runtime.replay_log import RecordedQuestion
from quire.programs.services.network import HttpReply, Network


class Hosts(Network):
    """Answers when ``may_answer`` is set, and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.was_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def request(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        self.asked.append(f"{method} {url}")
        self.was_asked.set()
        await self.may_answer.wait()
        reply = HttpReply("said")
        reply.status, reply.headers, reply.body = 200, {}, b"said"
        return reply


async def begun(asked: list[RecordedQuestion], method: str, headers: dict[str, str]) -> Hosts:
    """The hosts, asked by a program that begins again before they answer."""
    hosts = Hosts()
    first = RecordedNetwork(hosts, asked, ArrivalOrder(asked))
    asking = asyncio.create_task(first.request(method, "http://a/", headers=headers))
    await hosts.was_asked.wait()
    first.end()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    hosts.may_answer.set()
    return hosts


@pytest.mark.parametrize(
    ("method", "headers"),
    [("GET", {}), ("HEAD", {}), ("PUT", {}), ("DELETE", {}), ("POST", {"idempotency-KEY": "k"})],
)
async def test_what_may_be_repeated_is_asked_again(method: str, headers: dict[str, str]) -> None:
    asked: list[RecordedQuestion] = []
    hosts = await begun(asked, method, headers)
    again = RecordedNetwork(hosts, asked, ArrivalOrder(asked))
    assert await again.request(method, "http://a/", headers=headers) == "said"
    assert len(hosts.asked) == 2


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_what_may_have_been_done_is_not_done_again(method: str) -> None:
    asked: list[RecordedQuestion] = []
    hosts = await begun(asked, method, {})
    for _ in range(2):  # the error is in the record as an answer would be
        again = RecordedNetwork(hosts, asked, ArrivalOrder(asked))
        with pytest.raises(RequestInterrupted, match="may have been carried out"):
            await again.request(method, "http://a/", headers={})
    assert len(hosts.asked) == 1
    assert await again.request(method, "http://a/", headers={}) == "said"


async def test_a_request_that_is_not_repeated_waits_until_the_record_is_kept() -> None:
    """Else a node that knows nothing of it would make it again."""
    hosts, kept = Hosts(), asyncio.Event()
    hosts.may_answer.set()
    asked: list[RecordedQuestion] = []

    async def keep() -> None:
        assert [one.what[0] for one in asked][-1:] == ["POST http://a/"], "it is in the record"
        await kept.wait()

    network = RecordedNetwork(hosts, asked, ArrivalOrder(asked), keep)
    posting = asyncio.create_task(network.request("POST", "http://a/"))
    for _ in range(8):
        await asyncio.sleep(0)
    assert not hosts.asked
    kept.set()
    assert await posting == "said"
    kept.clear()
    assert await network.request("GET", "http://a/") == "said", "it waits for nothing"


async def test_streams_are_refused_where_answers_are_recorded() -> None:
    hosts = Hosts()
    for network in (RecordedNetwork(hosts, [], ArrivalOrder()), WholeAnswers(hosts)):
        with pytest.raises(InvalidArgument, match="cannot stream"):
            await network.open("GET", "http://a/")
    hosts.may_answer.set()
    assert await WholeAnswers(hosts).request("GET", "http://a/") == "said"
