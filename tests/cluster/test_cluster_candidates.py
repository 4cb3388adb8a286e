"""Which engines are left for a request, and in which order it goes on."""

from __future__ import annotations

import pytest
from router_world import World, world

from quire.cluster.passing.candidates import EngineCandidates
from quire.cluster.requests.request import COMPLETIONS, Request
from quire.core.errors import UnknownHandle


def a_request() -> Request:
    return Request("POST", COMPLETIONS, [], b"{}", "r")


def names(found: object) -> list[str]:
    assert isinstance(found, list)
    return [one.name for one in found]


async def candidates(w: World) -> EngineCandidates:
    await w.probe()
    return EngineCandidates(w.router.fleet)


async def test_an_engine_that_was_lost_is_no_candidate() -> None:
    async with world(num_nodes=3) as w:
        made, request = await candidates(w), a_request()
        first, second, third = w.router.fleet.engines
        assert names(made.ready(request)) == [first.name, second.name, third.name]
        request.work.lost.add(second.name)
        assert names(made.ready(request)) == [first.name, third.name]
        request.work.lost |= {first.name, third.name}
        assert names(made.ready(request)) == []


async def test_a_request_goes_on_where_it_wishes_and_last_at_a_full_engine() -> None:
    async with world(num_nodes=4) as w:
        made, request = await candidates(w), a_request()
        full, busy, idle, wanted = w.router.fleet.engines
        request.work.full.add(full.name)
        for _ in range(2):
            busy.node.began()
        for _ in range(3):
            wanted.node.began()
        request.prefers = wanted.name
        order = [wanted.name, idle.name, busy.name, full.name]
        assert names(made.left(request)) == order
        assert request.prefers is None, "the wish is granted once"
        assert names(made.left(request)) == [idle.name, busy.name, wanted.name, full.name]


async def test_a_node_that_is_named_and_not_there_is_refused_with_those_that_are() -> None:
    async with world(num_nodes=2) as w:
        made = await candidates(w)
        first, second = w.router.fleet.engines
        assert made.named(first.name) is first
        assert made.engine("none") is None
        with pytest.raises(
            UnknownHandle, match=f"no node 'none' here: {first.name}, {second.name}"
        ):
            made.named("none")
