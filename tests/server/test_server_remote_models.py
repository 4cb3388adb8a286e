"""A workflow of one node whose model is another node's, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_server import MODEL, RunningServer, running_server

from quire.core.config import TenantConfig
from quire.core.errors import ProgramFailed
from quire.core.ids import TenantId
from quire.programs.workflow import App, Engine, Node, StepLog, use_keys, workflow
from quire.programs.workflow.execution.answer_text import SaidText
from quire.programs.workflow.runners.remote import RemoteRunner
from quire.programs.workflow.running import run_query
from quire.testing import LocalNode


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(tenants=[TenantConfig(TenantId("a"), ("its-key",))]) as running:
        yield running


def app_of(server: RunningServer, key: str = "its-key", **config: Any) -> App:
    """Asked about each of some texts, then about all answers together."""
    remote = {"base_url": f"{server.url}/v1", "model": MODEL, "api_key_env": "REMOTE_KEY"}
    app = App("remote", [Engine("llm", config={**remote, **config})])
    each = Node(
        "llm", {"items": "texts"}, {"found": "texts"}, "batchable", {"prompt": "say {items}"},
        name="each",
    )  # fmt: skip
    every = Node(
        "llm", {"found": "texts"}, {"answer": "text"}, None,
        {"prompt": "say {found}", "separator": " and "}, name="every",
    )  # fmt: skip
    each >> every
    app.update_template([each, every])
    return use_keys(app, {"REMOTE_KEY": key})


class Words(StepLog):
    reads_text = True

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    async def said(self, output: str, said: SaidText) -> None:
        self.text += said.text


async def test_a_node_asks_another_one(server: RunningServer) -> None:
    query = {"items": ["one", "two", "three"]}
    watcher = Words()

    async def main(api: Any) -> Any:
        return await run_query(api, app_of(server), query, watcher=watcher)

    async with LocalNode() as local:
        found = await local.run(workflow(app_of(server)), json.dumps(query))
        assert found == {"answer": "one and two and three"}
        assert await local.run(main) == found
    assert watcher.text == found["answer"]
    ids = [step.primitive.id for step in watcher.steps]
    assert sorted(ids) == ["each.0.call", "each.1.call", "each.2.call", "every.call"]


@pytest.mark.parametrize(
    ("key", "config", "message"),
    [
        ("wrong", {}, r"each: http://.*/v1/chat/completions: status 401"),
        ("its-key", {"model": "other"}, r"each: http://.*: status 404 .*other"),
        ("", {}, "environment variable REMOTE_KEY, which is not set"),
        (
            "its-key",
            {"base_url": "http://127.0.0.1:1", "retries": 0},
            "each: http://127.0.0.1:1 wa",
        ),
    ],
)
async def test_what_the_endpoint_refuses_is_one_clear_error(
    server: RunningServer,
    key: str,
    config: dict[str, Any],
    message: str,
) -> None:
    async with LocalNode() as local:
        with pytest.raises(ProgramFailed, match=message):
            await local.run(workflow(app_of(server, key, **config)), json.dumps({"items": ["one"]}))


async def test_a_key_that_is_missing_leaves_no_other_connection_open(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[RemoteRunner] = []
    monkeypatch.setattr(RemoteRunner, "close", lambda self: _closing(closed, self))
    remote = {"base_url": f"{server.url}/v1", "model": MODEL}
    engines = [
        Engine("llm", name="first", config=remote),
        Engine("llm", name="second", config={**remote, "api_key_env": "NO_KEY"}),
    ]
    app = App("two", engines)
    first = Node("first", {"a": "text"}, {"b": "text"}, None, {"prompt": "say {a}"}, name="one")
    second = Node(
        "second", {"b": "text"}, {"answer": "text"}, None, {"prompt": "say {b}"}, name="two"
    )
    app.update_template([first, second])
    async with LocalNode() as local:
        with pytest.raises(ProgramFailed, match="environment variable NO_KEY, which is not set"):
            await local.run(workflow(app), json.dumps({"a": "x"}))
    assert len(closed) == 1


async def _closing(closed: list[RemoteRunner], runner: RemoteRunner) -> None:
    closed.append(runner)
    await runner._client.aclose()
