"""An application whose node has not been started: everything answers, nothing is a 500."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.metadata import version

import httpx
import pytest
import pytest_asyncio
from scripted_server import scripted_node

from quire.core.config import ServerConfig
from quire.server.app import create_app

HI = {"messages": [{"role": "user", "content": "say hi"}]}


@pytest_asyncio.fixture
async def unstarted() -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(scripted_node()[0], ServerConfig())
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        yield client


async def test_it_is_alive_and_not_ready(unstarted: httpx.AsyncClient) -> None:
    assert (await unstarted.get("/health")).status_code == 200
    ready = await unstarted.get("/ready")
    assert (ready.status_code, ready.json()["status"]) == (503, "loading")
    for method in ("GET", "POST"):
        ping = await unstarted.request(method, "/ping")
        assert (ping.status_code, ping.json()["status"]) == (503, "loading")
    assert (await unstarted.get("/version")).json() == {"version": version("quire")}


@pytest.mark.parametrize("path", ["/metrics", "/v1/programs", "/openapi.json"])
async def test_what_only_looks_answers(unstarted: httpx.AsyncClient, path: str) -> None:
    assert (await unstarted.get(path)).status_code == 200


async def test_a_list_of_models_is_never_empty(unstarted: httpx.AsyncClient) -> None:
    """Clients take its first model, or take an answer for a sign that the model is loaded."""
    answer = await unstarted.get("/v1/models")
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert "is still being loaded: try again" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", HI),
        ("/v1/completions", {"prompt": "say hi"}),
        ("/tokenize", {"prompt": "say hi"}),
        ("/v1/programs", {"program": "text_completion", "args": ["say hi"]}),
    ],
)
async def test_work_is_told_to_come_back(
    unstarted: httpx.AsyncClient, path: str, body: dict[str, object]
) -> None:
    answer = await unstarted.post(path, json=body)
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/models", None),
        ("POST", "/v1/chat/completions", HI),
        ("POST", "/tokenize", {"prompt": "say hi"}),
        ("POST", "/v1/programs", {"program": "text_completion", "args": ["say hi"]}),
    ],
)
async def test_who_waits_for_a_model_that_will_never_come_is_told_so(
    method: str, path: str, body: dict[str, object] | None
) -> None:
    """Clients repeat what is answered with 503 or engine_lost."""
    app = create_app(scripted_node(models=())[0], ServerConfig())
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        answer = await client.request(method, path, json=body)
    assert answer.status_code == 404, answer.text
    assert "retry-after" not in answer.headers
    error = answer.json()["error"]
    assert error["code"] == "model_not_found"
    assert error["message"].startswith("this node serves no model, and none will be loaded: start")
