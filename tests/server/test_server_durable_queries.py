"""Queries with an id over HTTP: kept, resumed, refused, deleted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_server import RunningServer, running_server

from quire.client import Client
from quire.core.config import ServerConfig, TenantConfig
from quire.core.errors import EngineFault, UnknownHandle
from quire.core.ids import TenantId
from quire.programs.workflow import App, Engine, Growth, Node
from quire.programs.workflow.applications import Applications

KEYS = {name: {"authorization": f"Bearer key-{name}"} for name in ("a", "b")}
PATH = "/v1/workflows/report/query"


class Bank:
    """Fails as often as it is told to."""

    def __init__(self) -> None:
        self.num_failures = 0
        self.calls: list[str] = []

    def look_up(self, name: str) -> str:
        self.calls.append(f"look up {name}")
        return f"account of {name}"

    def pay(self, account: str) -> str:
        self.calls.append(f"pay {account}")
        if self.num_failures:
            self.num_failures -= 1
            raise EngineFault("the bank is closed")
        return f"paid to {account}"


BANK = Bank()


def report() -> App:
    functions = {"look_up": BANK.look_up, "pay": BANK.pay}
    app = App("report", [Engine("tool", config={"functions": functions}), Engine("llm")])
    first = Node("tool", {"name": "text"}, {"account": "text"}, config={"function": "look_up"},
                 name="look_up")  # fmt: skip
    pay = Node("tool", {"account": "text"}, {"paid": "text"}, config={"function": "pay"},
               name="pay")  # fmt: skip
    say = Node("llm", {"paid": "text"}, {"answer": "text"}, None,
               {"prompt": "say {paid}", "max_tokens": 64}, name="say")  # fmt: skip
    app.update_template([first, pay, say])
    return app


def shout(text: str) -> str:
    return text.upper()


def grow(name: str) -> Growth:
    return Growth(
        [
            Node("tool", {"text": "text"}, {"answer": "text"}, config={"function": "shout"},
                 name="shout")
        ],
        {"text": name},
    )  # fmt: skip


def growing() -> App:
    functions = {"tool": {"shout": shout}, "growth": {"grow": grow}}
    app = App(
        "growing", [Engine(kind, config={"functions": own}) for kind, own in functions.items()]
    )
    config = {"function": "grow"}
    node = Node("growth", {"name": "text"}, {"answer": "text"}, config=config, name="grow")
    app.update_template([node])
    return app


@pytest.fixture
def bank() -> Bank:
    BANK.calls.clear()
    BANK.num_failures = 0
    return BANK


@pytest.fixture
def served(tmp_path: Path) -> Iterator[RunningServer]:
    tenants = [TenantConfig(TenantId(name), (f"key-{name}",)) for name in KEYS]
    config = ServerConfig(drain_timeout_s=1.0, sandbox_upload=False)
    apps = Applications.of({"report": report(), "growing": growing()})
    with running_server(config, tenants, workflows=apps, data_dir=tmp_path) as running:
        yield running


@pytest.fixture
def http(served: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, headers=KEYS["a"]) as client:
        yield client


def ask(http: httpx.Client, **body: Any) -> httpx.Response:
    return http.post(PATH, json=body)


def test_a_query_that_failed_goes_on(http: httpx.Client, bank: Bank) -> None:
    bank.num_failures = 1
    failed = ask(http, query={"name": "Lin"}, query_id="q")
    assert failed.status_code == 500
    assert "pay: the bank is closed" in failed.text
    found = ask(http, query={"name": "Lin"}, query_id="q").json()
    assert found["results"] == {"answer": "paid to account of Lin"}
    assert (found["num_kept"], found["num_primitives"]) == (1, 4)
    assert bank.calls == ["look up Lin", *["pay account of Lin"] * 2]
    again = ask(http, query_id="q", resume=True).json()
    assert again["results"] == found["results"]
    assert (again["num_kept"], again["num_primitives"]) == (4, 4)
    assert len(bank.calls) == 3


def test_a_finished_query_counts_what_it_had_grown_by(http: httpx.Client) -> None:
    body = {"query": {"name": "Lin"}, "query_id": "q"}
    first, again = (http.post("/v1/workflows/growing/query", json=body).json() for _ in range(2))
    assert first["results"] == again["results"] == {"answer": "LIN"}
    assert (first["num_kept"], first["num_primitives"]) == (0, 2)
    assert (again["num_kept"], again["num_primitives"]) == (2, 2)


def test_the_stream_of_a_finished_query_has_its_text(http: httpx.Client, bank: Bank) -> None:
    for num_kept in (0, 4):
        text = ask(http, query={"name": "Lin"}, query_id="q", stream=True).text
        lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
        events = [json.loads(line) for line in lines]
        said = "".join(event["text"] for event in events if event["type"] == "delta")
        assert said == events[-1]["results"]["answer"] == "paid to account of Lin"
        resumed = [event for event in events if event["type"] == "resumed"]
        wanted = {"type": "resumed", "num_kept": num_kept, "num_primitives": num_kept}
        assert resumed == ([wanted] if num_kept else [])
    assert len(bank.calls) == 2


def test_the_key_of_a_client_is_an_id(http: httpx.Client, bank: Bank) -> None:
    for _ in range(2):
        sent = {"idempotency-key": "key"}
        assert http.post(PATH, json={"query": {"name": "Lin"}}, headers=sent).status_code == 200
    assert len(bank.calls) == 2


def test_an_id_is_of_one_query_of_a_tenant(
    served: RunningServer, http: httpx.Client, bank: Bank
) -> None:
    assert ask(http, query={"name": "Lin"}, query_id="q").status_code == 200
    other = ask(http, query={"name": "Mia"}, query_id="q")
    assert other.status_code == 409
    assert other.json()["error"]["param"] == "query_id"
    assert "was asked with other inputs" in other.json()["error"]["message"]
    with httpx.Client(base_url=served.url, headers=KEYS["b"]) as neighbour:
        assert ask(neighbour, query_id="q", resume=True).status_code == 404
        assert neighbour.delete("/v1/workflows/report/queries/q").status_code == 404
        assert ask(neighbour, query={"name": "Mia"}, query_id="q").status_code == 200


def test_what_is_deleted_is_asked_anew(http: httpx.Client, bank: Bank) -> None:
    ask(http, query={"name": "Lin"}, query_id="q/1")
    gone = http.delete("/v1/workflows/report/queries/q%2F1")
    assert (gone.status_code, gone.json()["deleted"]) == (200, True)
    assert ask(http, query_id="q/1", resume=True).status_code == 404
    ask(http, query={"name": "Mia"}, query_id="q/1")
    assert len(bank.calls) == 4


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"query": {"name": "x"}, "resume": True}, "resume", "give its query_id too"),
        ({"repeat_interrupted": True, "query": {"name": "x"}}, "repeat_interrupted", "query_id"),
        ({"query": {"name": "x"}, "resume": True, "query_id": "q"}, "resume", "leave them out"),
        ({"query_id": "q"}, "query", "the query's inputs are missing"),
        ({}, "query", "the query's inputs are missing"),
    ],
)
def test_what_does_not_fit_is_refused(
    http: httpx.Client, body: Any, param: str, message: str
) -> None:
    refused = ask(http, **body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    assert message in refused.json()["error"]["message"]


async def test_the_client_has_it_too(served: RunningServer, bank: Bank) -> None:
    async with Client(served.url, "key-a") as client:
        for query, resume in (({"name": "Lin"}, False), (None, True)):
            found = await client.query("report", query, query_id="q", resume=resume)
            assert found == {"answer": "paid to account of Lin"}
        await client.forget_query("report", "q")
        with pytest.raises(UnknownHandle, match="nothing is kept of a query 'q'"):
            await client.query("report", query_id="q", resume=True)
        events = [one async for one in client.query_events("report", {"name": "Z"}, query_id="q")]
        assert events[-1]["num_kept"] == 0
    assert len(bank.calls) == 4
    await asyncio.sleep(0)


def test_a_node_without_a_data_directory_says_so() -> None:
    apps = Applications.of({"report": report(), "growing": growing()})
    with (
        running_server(workflows=apps) as running,
        httpx.Client(base_url=running.url) as client,
    ):
        refused = ask(client, query={"name": "Lin"}, query_id="q")
        assert refused.status_code == 400
        assert "start it with --data-dir" in refused.json()["error"]["message"]
