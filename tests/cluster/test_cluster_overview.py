"""One view over real nodes through a router: what ``quire top``, ``quire ps`` and ``/ui`` read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from http_peer import Said, said
from real_nodes import MODEL, RealNode, real_nodes
from router_world import ADMIN_HEADERS, World, world

from quire.cli.client import NodeClient
from quire.cli.process_table import process_table
from quire.cli.top.command import look
from quire.cli.top.screen import printed
from quire.cli.top.state import Snapshot, View
from quire.cluster.nodes.record_reader import RecordReader
from quire.core.config import TenantConfig
from quire.core.ids import TenantId
from quire.programs.library import LIBRARY
from quire.programs.sdk import inferlet


@inferlet("waits")
async def waits(api):  # type: ignore[no-untyped-def]
    await api.receive()


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RealNode]]:
    with real_nodes(2) as nodes:
        yield nodes


async def session(w: World, node: RealNode, name: str) -> None:
    answer = await w.http.post(
        "/v1/sessions", json={"id": name}, headers={"x-quire-node": node.name}
    )
    assert answer.status_code < 300, answer.text


async def top(w: World, known: Snapshot | None = None) -> Snapshot:
    def ask() -> Snapshot:
        with NodeClient(w.url) as client:
            return look(client, known or Snapshot())

    return await asyncio.to_thread(ask)


def named(snapshot: Snapshot, name: str) -> list[dict[str, Any]]:
    return [
        row for row in snapshot.rows.values() if name in (row["id"], row["client_id"], row["name"])
    ]


def places(snapshot: Snapshot, name: str) -> list[str]:
    return sorted(row["node"] for row in named(snapshot, name))


def text_of(shown: Any) -> str:
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


async def test_top_shows_all_nodes_and_ends_what_is_marked_where_it_is(
    nodes: list[RealNode],
) -> None:
    async with world(nodes=nodes) as w:
        for node in nodes:
            await session(w, node, "the-same")
        known = await top(w)
        assert places(known, "the-same") == ["real-0", "real-1"]
        assert {engine["engine"] for engine in known.engines} == {
            f"real-0/{MODEL}#0",
            f"real-1/{MODEL}#0",
        }
        shown = text_of(printed(known, View(), 200))
        assert "real-0" in shown
        assert f"real-1/{MODEL}#0 ready" in shown

        (marked,) = (row for row in named(known, "the-same") if row["node"] == "real-1")

        def end() -> None:
            with NodeClient(w.url) as client:
                client.end_session(marked["id"], node="real-1")

        await asyncio.to_thread(end)
        after = await top(w, known)
        assert places(after, "the-same") == ["real-0"]
        again = await top(w, after)
        assert again.rows == after.rows

        listed = (await w.http.get("/v1/programs")).json()["data"]
        assert {one["node"] for one in listed if "the-same" in (one["id"], one["name"])} >= {
            "real-0"
        }
        assert "real-0" in text_of(process_table(listed, 0.0))


async def test_the_same_session_at_two_nodes_is_listed_for_each(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w:
        for node in nodes:
            await session(w, node, "twice")
        listed = (await w.http.get("/v1/programs")).json()["data"]
        assert sorted(one["node"] for one in listed if "twice" in (one["id"], one["name"])) == [
            "real-0",
            "real-1",
        ]


async def test_a_program_that_goes_on_elsewhere_is_listed_there_alone(
    nodes: list[RealNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both nodes have it until its former node knows of the move."""
    async with world(nodes=nodes) as w:
        monkeypatch.setitem(LIBRARY._modules, "waits", __name__)
        body = {"program": "waits"}
        ids = [
            (await w.http.post("/v1/programs", json=body, headers={"x-quire-node": at})).json()[
                "id"
            ]
            for at in ("real-0", "real-1")
        ]

        async def listed() -> tuple[list[int], list[int]]:
            shown = [one["id"] for one in (await w.http.get("/v1/programs")).json()["data"]]
            rows = (await w.http.get("/v1/programs/changes")).json()["programs"]
            return (
                [shown.count(one) for one in ids],
                [sum(row["id"] == one for row in rows) for one in ids],
            )

        assert await listed() == ([1, 1], [1, 1])
        reader = RecordReader(w.router.nodes[0], {}, "me", lambda: 0.0)
        reader.gone = set(ids)
        w.router.rescue._readers.add(reader)
        assert await listed() == ([0, 1], [0, 1])
        w.router.rescue._readers.discard(reader)
        for one in ids:
            await w.http.delete(f"/v1/programs/{one}")


async def test_a_node_that_dies_takes_its_rows_along(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w:
        for node in nodes:
            await session(w, node, "whose")
        known = await top(w)
        w.router.nodes[1].liveness.failed("gone")
        w.router.nodes[1].liveness.failed("gone")
        after = await top(w, known)
        assert places(after, "whose") == ["real-0"]
        assert not after.node["ready"]
        assert "real-1: it is lost: gone" in after.node["detail"]


@pytest.mark.parametrize(
    "odd",
    [
        Said(body=b"{}"),
        Said(body=b'{"next": "1-1", "whole": true, "more": false, "programs": [{}], "ended": []}'),
        Said(body=b'{"next": "\xff"}'),
        Said(body=b"[" * 100_000),
    ],
)
async def test_a_node_that_answers_oddly_hides_no_other(odd: Said) -> None:
    """Such as one of another release, while releases change."""
    row = {"id": None, "process": 1, "parent": None, "engines": []}
    lists = {"programs": [row], "ended": [], "engines": []}
    node = {"ready": True, "detail": "", "policy": "fcfs", "time": 5, "uptime_s": 3}
    async with world(2) as w:
        w.nodes[0].refusal = said(
            {"next": "1-1", "whole": True, "more": False, "node": node, **lists}
        )
        w.nodes[1].refusal = odd
        told = (await w.http.get("/v1/programs/changes")).json()
    assert [row["node"] for row in told["programs"]] == ["node-0"]
    assert told["node"]["detail"].startswith("node-1: ")
    assert not told["node"]["ready"]


async def test_a_refusal_in_another_form_is_a_refusal() -> None:
    async with world(1) as w:
        w.nodes[0].refusal = said({"error": "no"}, 401)
        assert (await w.http.get("/v1/programs/changes")).status_code == 401


async def test_the_page_and_its_feed_come_from_the_router(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w:
        page = await w.http.get("/ui")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert (await w.http.get("/ui/main.js")).status_code == 200
        assert (await w.http.get("/ui/none.js")).status_code == 404
        same = await w.http.get("/ui", headers={"if-none-match": page.headers["etag"]})
        assert same.status_code == 304
        headers = {"accept": "text/event-stream"}
        async with w.http.stream("GET", "/v1/programs/changes", headers=headers) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = answer.aiter_lines()
            named = await anext(lines)
            told = json.loads((await anext(lines)).removeprefix("data: "))
        assert named == f"id: {told['next']}"
        assert len(told["engines"]) == 2
        later = await w.http.get("/v1/programs/changes", params={"since": told["next"]})
        assert not later.json()["whole"]


async def test_a_node_that_is_named_answers_itself(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w:
        headers = {"x-quire-node": "real-1"}
        told = (await w.http.get("/v1/programs/changes", headers=headers)).json()
        assert [engine["engine"] for engine in told["engines"]] == [f"{MODEL}#0"]


async def test_what_cannot_be_told_is_refused(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w:
        assert (await w.http.get("/v1/programs/changes?since=1-1")).status_code == 400
        for node in w.router.nodes:
            node.liveness.failed("gone")
            node.liveness.failed("gone")
        answer = await w.http.get("/v1/programs/changes")
        assert answer.status_code == 503
        assert "real-0: it is lost: gone" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/programs/changes?sinse=1-1", "sinse"),
        ("/v1/programs/changes?blank=", "blank"),
        ("/v1/programs?tenant=a", "tenant"),
        ("/v1/programs?limit=3", "limit"),
        ("/v1/programs?tenant=", "tenant"),
        ("/v1/sessions?limit=3&user=a", "user"),
        ("/router/engines?name=real-0", "name"),
    ],
)
async def test_a_parameter_that_nothing_reads_is_refused_by_its_name(
    nodes: list[RealNode], path: str, name: str
) -> None:
    async with world(nodes=nodes) as w:
        answer = await w.http.get(path, headers=ADMIN_HEADERS)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (
            400, "unknown_parameter", name,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/programs/changes?since=1-1&since=2-2", "since"),
        ("/v1/sessions?limit=3&limit=4", "limit"),
    ],
)
async def test_a_parameter_that_is_there_twice_is_refused(
    nodes: list[RealNode], path: str, name: str
) -> None:
    async with world(nodes=nodes) as w:
        answer = await w.http.get(path, headers=ADMIN_HEADERS)
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            400, f"{name}: it is there twice; send it once",
        )  # fmt: skip


async def test_the_routers_keys_guard_the_view_and_not_the_page(nodes: list[RealNode]) -> None:
    tenants = (TenantConfig(TenantId("default"), api_keys=("secret",)),)
    async with world(nodes=nodes, tenants=tenants) as w:
        assert (await w.http.get("/v1/programs/changes")).status_code == 401
        assert (await w.http.get("/ui")).status_code == 200
        headers = {"authorization": "Bearer secret"}
        assert (await w.http.get("/v1/programs/changes", headers=headers)).status_code == 200
