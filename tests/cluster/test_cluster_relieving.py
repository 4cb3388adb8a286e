"""Requests that wait for a first token at a node whose engine is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from http_peer import refused
from router_world import World, text_of, until, world
from stand_in_node import MODEL, continuation

from quire.cluster.engines.unanswered import UnansweredRequests
from quire.cluster.requests.request import Request
from quire.core.errors import EngineLost

HI = {"prompt": "Hi", "max_tokens": 4}
COMPLETION = ("/v1/completions", {"model": MODEL, **HI})
OF_ANY_MODEL = ("/v1/completions", HI)
STREAM = ("/v1/completions", {"model": MODEL, **HI, "stream": True})
CHAT = ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]})
SESSION = ("/v1/sessions", {"id": "mine"})

Asked = tuple[str, dict[str, Any]]


@asynccontextmanager
async def waiting_at_first(w: World, asked: Asked) -> AsyncIterator[asyncio.Task[httpx.Response]]:
    """The request ``asked``, for which ``node-0`` has no engine any more."""
    first, second = w.nodes
    w.router.nodes[1].is_draining = True
    first.has_engine.clear()
    path, body = asked
    answer = asyncio.create_task(w.http.post(path, json=body))
    await first.has_been_asked.wait()
    w.router.nodes[1].is_draining = False
    first.lose_engine()
    try:
        yield answer
    finally:
        first.load_engine()
        second.load_engine()
        await answer


async def heard_of_both(w: World) -> None:
    """Of ``node-1`` first: what waits at ``node-0`` would go there otherwise."""
    first, second = w.router.fleet.watches
    await second.probe()
    await first.probe()


@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("asked", [COMPLETION, OF_ANY_MODEL, STREAM, CHAT])
async def test_they_go_where_an_engine_is_as_soon_as_the_node_says_so(
    asked: Asked, resumes: bool
) -> None:
    async with world(2, resumes=resumes) as w, waiting_at_first(w, asked) as answer:
        await w.probe()
        got = await answer
        assert got.status_code == 200
        assert got.headers["x-quire-node"] == "node-1"
        await w.nodes[0].peer.left.wait()  # it does not answer a second time


async def test_they_stay_while_no_other_node_can_serve_them() -> None:
    async with world(2) as w, waiting_at_first(w, COMPLETION) as answer:
        w.nodes[1].lose_engine()
        await heard_of_both(w)
        w.nodes[0].load_engine()
        w.nodes[1].load_engine()
        assert (await answer).headers["x-quire-node"] == "node-0"


async def test_they_go_to_the_first_node_that_has_its_engine_again() -> None:
    async with world(2) as w, waiting_at_first(w, COMPLETION) as answer:
        w.nodes[1].lose_engine()
        await heard_of_both(w)
        w.nodes[1].load_engine()
        await w.probe()
        assert (await answer).headers["x-quire-node"] == "node-1"


@pytest.mark.parametrize("asked", [COMPLETION, STREAM, CHAT])
async def test_they_come_back_if_the_other_node_is_full(asked: Asked) -> None:
    async with world(2) as w, waiting_at_first(w, asked) as answer:
        w.nodes[0].has_been_asked.clear()
        w.nodes[1].refusal = refused(503, "capacity", "full")
        await w.probe()
        back = asyncio.create_task(w.nodes[0].has_been_asked.wait())
        await asyncio.wait({answer, back}, return_when=asyncio.FIRST_COMPLETED)
        assert back.done(), (await answer).text
        w.nodes[0].load_engine()
        assert (await answer).headers["x-quire-node"] == "node-0"


async def test_what_may_have_changed_something_at_the_node_stays() -> None:
    async with world(2) as w, waiting_at_first(w, SESSION) as answer:
        await w.probe(3)
        w.nodes[0].load_engine()
        assert (await answer).headers["x-quire-node"] == "node-0"


async def test_requests_for_other_models_of_the_node_stay() -> None:
    async with world(2) as w, waiting_at_first(w, COMPLETION) as answer:
        w.nodes[0].health["models"] = {MODEL: True, "tiny": False}
        await w.probe()
        w.nodes[0].load_engine()
        assert (await answer).headers["x-quire-node"] == "node-0"


async def test_new_requests_avoid_a_node_from_its_first_word_of_a_lost_engine() -> None:
    async with world(2) as w:
        w.nodes[0].lose_engine()
        await w.probe()
        assert w.router.nodes[0].liveness.state == "ready", "one probe kills no node"
        answers = [await w.complete(model=MODEL) for _ in range(4)]
        assert {text_of(one) for one in answers} == {continuation("Hi", 4)}
        assert {one.headers["x-quire-node"] for one in answers} == {"node-1"}


async def test_new_requests_wait_at_such_a_node_if_there_is_no_other() -> None:
    async with world(1) as w:
        w.nodes[0].lose_engine()
        await w.probe()
        answer = asyncio.create_task(w.complete())
        await w.nodes[0].has_been_asked.wait()
        w.nodes[0].load_engine()
        assert text_of(await answer) == continuation("Hi", 4)


async def test_who_is_let_go_twice_leaves_once_and_other_time_limits_keep_their_meaning() -> None:
    unanswered = UnansweredRequests("node-0")
    request = Request("POST", "/v1/completions", [], b"", "r")
    left = []

    async def wait() -> None:
        try:
            async with unanswered.waiting(request):
                await asyncio.Event().wait()
        except EngineLost as exc:
            left.append(exc.message)

    task = asyncio.create_task(wait())
    await until(lambda: bool(unanswered._waiting))
    unanswered.let_go(lambda _: False)
    unanswered.let_go(lambda one: one is request)
    await asyncio.sleep(0)  # its wait is about to end
    unanswered.let_go(lambda _: True)
    await task
    assert left == ["node node-0 has lost its engine before the answer began"]
    with pytest.raises(TimeoutError):
        async with unanswered.waiting(request):
            raise TimeoutError
    assert not unanswered._waiting
