"""Direct routes: clients see what they would see if the framework had called the route."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fastapi import FastAPI
from scripted_server import MODEL, RunningServer, scripted_node

from quire.core.config import ServerConfig
from quire.server import app as application
from quire.server.app import create_app
from quire.server.direct_routes import DirectRoute
from quire.server.errors.errors import HttpError

JSON = {"content-type": "application/json"}
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/tokenize")
BAD_REQUESTS = [
    pytest.param(b"", JSON, id="no-body"),
    pytest.param(b"{", JSON, id="cut-json"),
    pytest.param(b"null", JSON, id="null"),
    pytest.param(b"[1, 2]", JSON, id="list"),
    pytest.param(b'"text"', JSON, id="text"),
    pytest.param(b"{}", JSON, id="nothing-named"),
    pytest.param(b"{}", {"content-type": "text/plain"}, id="no-json-type"),
    pytest.param(b"{}", {}, id="no-type"),
    pytest.param(b"{}", {"content-type": "application/x/json"}, id="odd-type"),
    pytest.param(b'{"model": 5, "n": "x"}', JSON, id="wrong-types"),
    pytest.param(b'{"model": "m", "temprature": 1}', JSON, id="misspelt"),
    pytest.param(b'{"model": "m", "model": "m"}', JSON, id="key-twice"),
    pytest.param(b'{"model": NaN}', JSON, id="nan"),
    pytest.param(b'{"model": "\xff"}', JSON, id="no-utf8"),
    pytest.param(b"[" * 100 + b"]" * 100, JSON, id="deep"),
    pytest.param(b'{"model": "m", "prompt": "p", "messages": [{"role": 1}]}', JSON, id="inside"),
    pytest.param(b"x" * 2000, JSON, id="too-long"),
]


def make_app() -> FastAPI:
    return create_app(scripted_node()[0], ServerConfig(max_body_bytes=1000))


@pytest.fixture(scope="module")
def apps() -> tuple[FastAPI, FastAPI]:
    """With direct routes, and without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(application, "direct_routes", lambda routes: {})
        plain = make_app()
    return make_app(), plain


def answers(
    apps: tuple[FastAPI, FastAPI], method: str, path: str, body: bytes, headers: dict[str, str]
) -> list[tuple[int, dict[str, str], bytes]]:
    async def answer(app: FastAPI) -> tuple[int, dict[str, str], bytes]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            sent = {"x-request-id": "same", **headers}
            response = await client.request(method, path, content=body, headers=sent)
            return response.status_code, dict(response.headers), response.content

    return [asyncio.run(answer(app)) for app in apps]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("body", "headers"), BAD_REQUESTS)
def test_a_bad_request_is_answered_alike(
    apps: tuple[FastAPI, FastAPI], path: str, body: bytes, headers: dict[str, str]
) -> None:
    direct, plain = answers(apps, "POST", path, body, headers)
    assert direct == plain
    assert 400 <= direct[0] < 500
    assert direct[1]["x-request-id"] == "same"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/completions"),
        ("PUT", "/v1/chat/completions"),
        ("OPTIONS", "/v1/completions"),
        ("POST", "/v1/completions/"),
        ("POST", "/v1//completions"),
        ("POST", "/v1/programs/none/cancel"),
    ],
)
def test_all_else_is_left_to_the_framework(
    apps: tuple[FastAPI, FastAPI], method: str, path: str
) -> None:
    direct, plain = answers(apps, method, path, b"{}", JSON)
    assert direct == plain
    assert direct[0] >= 400


def test_an_error_of_the_route_itself_is_answered_alike(apps: tuple[FastAPI, FastAPI]) -> None:
    """The node has not started: there is no model yet."""
    body = b'{"model": "nobody", "prompt": "a"}'
    direct, plain = answers(apps, "POST", "/v1/completions", body, JSON)
    assert direct == plain
    assert direct[0] >= 400


def test_an_unforeseen_error_of_the_route_is_a_500(
    apps: tuple[FastAPI, FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("never told")

    monkeypatch.setattr("quire.server.completions.fields.check_num_choices", broken)
    monkeypatch.setattr("quire.node.Node.model", lambda self, name: None)
    body = b'{"model": "m", "prompt": "a"}'
    direct, plain = answers(apps, "POST", "/v1/completions", body, JSON)
    assert direct == plain
    assert direct[0] == 500
    assert b"never told" not in direct[2]


def test_the_framework_has_no_part_in_them(
    apps: tuple[FastAPI, FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the comparisons here would compare nothing."""

    async def refused(self: DirectRoute, request: object) -> None:
        raise HttpError(418, "directly")

    monkeypatch.setattr(DirectRoute, "__call__", refused)
    direct, plain = answers(apps, "POST", "/v1/completions", b"{}", JSON)
    assert (direct[0], plain[0]) == (418, 400)


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/vnd.x+JSON"])
def test_kinds_of_json_are_taken(server: RunningServer, kind: str) -> None:
    body = f'{{"model": "{MODEL}", "prompt": "say yes"}}'.encode()
    answer = httpx.post(
        f"{server.url}/v1/completions", content=body, headers={"content-type": kind}
    )
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"] == "yes"


def test_the_document_names_the_direct_routes(apps: tuple[FastAPI, FastAPI]) -> None:
    direct, plain = apps
    assert direct.openapi() == plain.openapi()
    assert set(PATHS) <= set(direct.openapi()["paths"])
