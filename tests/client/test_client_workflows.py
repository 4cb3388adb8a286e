"""``quire.client`` and workflows: results, events, and errors of both."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from quire.client import Client
from quire.core.errors import EngineLost, InvalidArgument

STARTED, DELTA = {"type": "started"}, {"type": "delta", "output": "answer", "text": "x"}
REPEATED = {"type": "primitive.repeated", "primitive": "search", "error": "the store is down"}
ENDED = {"type": "ended", "results": {"answer": "x"}}
REFUSED = {"error": {"message": "no 'b'", "code": "invalid_argument", "param": "query.b"}}


def stream(*events: object) -> bytes:
    lines = [f"id: 1\ndata: {json.dumps(event)}\n\n" for event in events]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def answer(request: httpx.Request) -> httpx.Response:
    """The node: ``query.a`` is answered, ``query.b`` refused, ``query.c`` fails on the way."""
    if request.method == "GET":
        return httpx.Response(200, json={"object": "list", "data": [{"name": "my app"}]})
    assert request.url.raw_path == b"/v1/workflows/my%20app/query"
    body = json.loads(request.content)
    if "b" in body["query"]:
        return httpx.Response(400, json=REFUSED)
    if not body.get("stream"):
        assert (body["config"], body["priority"]) == ({"c": {"k": 1}}, 2)
        return httpx.Response(200, json={"results": {"answer": "x"}})
    lost = {"type": "error", "error": {"message": "gone", "code": "engine_lost"}}
    last = lost if "c" in body["query"] else ENDED
    return httpx.Response(200, content=stream(STARTED, REPEATED, DELTA, last))


@pytest.fixture
async def node() -> AsyncIterator[Client]:
    async with Client("http://node") as client:
        await client._http.aclose()
        client._http = httpx.AsyncClient(
            base_url="http://node", transport=httpx.MockTransport(answer)
        )
        yield client


async def test_results_and_events(node: Client) -> None:
    assert await node.workflows() == [{"name": "my app"}]
    results = await node.query("my app", {"a": 1}, config={"c": {"k": 1}}, priority=2)
    assert results == {"answer": "x"}
    assert [event async for event in node.query_events("my app", {"a": 1})] == [
        STARTED, REPEATED, DELTA, ENDED
    ]  # fmt: skip


async def test_errors_before_and_on_the_way(node: Client) -> None:
    with pytest.raises(InvalidArgument, match="no 'b'") as refused:
        await node.query("my app", {"b": 1})
    assert refused.value.details == {"param": "query.b"}
    with pytest.raises(InvalidArgument, match="no 'b'") as refused:
        await anext(aiter(node.query_events("my app", {"b": 1})))
    assert refused.value.details == {"param": "query.b"}
    events = aiter(node.query_events("my app", {"c": 1}))
    assert [await anext(events) for _ in range(3)] == [STARTED, REPEATED, DELTA]
    with pytest.raises(EngineLost, match="gone") as lost:
        await anext(events)
    assert lost.value.details == {}
