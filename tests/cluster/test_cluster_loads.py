"""The loads of a cluster's nodes, as its routers tell them over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from http_peer import Asked, HttpPeer, Said, said

from quire.cluster.deployment.loads import NodeLoad, node_loads
from quire.cluster.deployment.process import ProcessState


def state(name: str, url: str, kind: Any = "router", phase: Any = "ready") -> ProcessState:
    return ProcessState(
        name=name, group="g", kind=kind, digest="d", phase=phase, url=url, nodes={}, kept=True
    )


def engine(name: str, num_outstanding: int | None, queue: int | None) -> dict[str, Any]:
    return {"name": name, "state": "alive", "num_outstanding": num_outstanding, "queue": queue}


@asynccontextmanager
async def router(*engines: dict[str, Any], answer: Said | None = None) -> AsyncIterator[HttpPeer]:
    """It tells its loads to whoever has the admin key ``k``."""

    async def told(asked: Asked) -> Said:
        if answer is not None:
            return answer
        if asked.headers.get("authorization") != "Bearer k":
            return said({"error": {}}, 401)
        assert asked.path == "/router/engines"
        return said({"engines": list(engines)})

    async with HttpPeer(told) as peer:
        yield peer


async def loads(*states: ProcessState, key: str | None = "k") -> dict[str, NodeLoad]:
    return await asyncio.to_thread(node_loads, {one.name: one for one in states}, key)


async def test_requests_of_all_routers_count_and_a_queue_once() -> None:
    async with (
        router(engine("a", 3, 2), engine("b", 1, 0)) as one,
        router(engine("a", 4, 5), engine("b", None, None)) as other,
    ):
        found = await loads(state("r0", one.url), state("r1", other.url, phase="unready"))
    assert found == {"a": NodeLoad("alive", 7, 5), "b": NodeLoad("alive", 1, 0)}


async def test_without_a_key_none_is_sent() -> None:
    sent: list[Asked] = []

    async def told(asked: Asked) -> Said:
        sent.append(asked)
        return said({"engines": [engine("a", 0, 0)]})

    async with HttpPeer(told) as peer:
        assert list(await loads(state("r", peer.url), key=None)) == ["a"]
        assert list(await loads(state("r", peer.url))) == ["a"]
    assert [one.headers.get("authorization") for one in sent] == [None, "Bearer k"]


async def test_who_does_not_answer_as_a_router_is_left_out() -> None:
    async with (
        router(engine("a", 3, 2)) as good,
        router(answer=Said(body=b"<html>")) as page,
        router(answer=said({"others": []})) as other,
        router(answer=said({}, 500)) as broken,
    ):
        states = [state(f"r{at}", one.url) for at, one in enumerate((page, other, broken, good))]
        assert await loads(*states) == {"a": NodeLoad("alive", 3, 2)}
        assert await loads(*states, key="wrong") == {}
        assert await loads(*states, key=None) == {}
        assert await loads(state("n", good.url, kind="node")) == {}
        assert await loads(state("r", good.url, phase="starting")) == {}
    assert await loads(state("gone", good.url)) == {}
