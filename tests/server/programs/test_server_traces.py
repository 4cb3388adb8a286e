"""``/v1/programs/{program}/trace``: what a program did, its own tenant's only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from scripted_server import MODEL, running_server

from quire.core.config import TenantConfig
from quire.core.ids import TenantId
from quire.node.tracing import reading
from quire.server.routes import traces as routes


def trace(http: httpx.Client, name: str, **query: Any) -> dict[str, Any]:
    response = http.get(f"/v1/programs/{name}/trace", params=query)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def complete(http: httpx.Client, headers: dict[str, str]) -> None:
    body = {"model": MODEL, "prompt": "say yes", "max_tokens": 8}
    answer = http.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text


def test_the_calls_of_a_session_their_waits_and_messages(http: httpx.Client) -> None:
    for _ in range(2):
        complete(http, {"x-quire-program-id": "traced"})
    body = trace(http, "traced")
    [program] = body["programs"]
    assert (program["form"], program["client_id"], program["num_calls"]) == ("session", "traced", 2)
    assert program["id"].startswith("prog-")
    first, second = program["calls"]
    for call in (first, second):
        assert (call["kind"], call["model"], call["outcome"]) == ("decode", MODEL, "done")
        assert program["start"] <= call["arrival"] <= call["sent"] <= call["first_token"]
        assert call["first_token"] <= call["end"] <= body["time"]
        assert call["num_generated_tokens"] > 0
    numbers = {(one["engine"], one["number"]) for one in body["messages"]}
    wanted = {
        (call["engine"], number)
        for call in (first, second)
        for start, stop in call["messages"]
        for number in range(start, stop + 1)
    }
    assert numbers == wanted
    assert program["waits"][-1] == {"start": second["end"], "end": None}
    assert trace(http, program["id"])["programs"][0]["calls"] == program["calls"]


def test_a_launched_program_is_traced_beyond_its_end_with_its_family(http: httpx.Client) -> None:
    body = {"program": "parallel_generation", "args": ["Hello", "2"], "wait": True}
    launched = http.post("/v1/programs", json=body)
    assert launched.status_code == 201, launched.text
    name = launched.json()["id"]
    [program] = trace(http, name, family=True)["programs"]
    assert program["reason"] == "finished"
    assert program["end"] is not None
    assert program["calls"]
    assert all(call["end"] <= program["end"] for call in program["calls"])


def test_a_session_that_has_ended_is_found_by_its_names(http: httpx.Client) -> None:
    complete(http, {"x-quire-program-id": "over"})
    gone = http.delete("/v1/sessions/over")
    assert gone.status_code == 200, gone.text
    [program] = trace(http, "over")["programs"]
    assert (program["client_id"], program["id"][:5]) == ("over", "prog-")
    assert len(program["calls"]) == 1


def test_a_trace_is_put_together_beside_the_loop(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a large family takes a second, in which no client would get a token."""
    threads: list[str] = []

    def noted(found: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            threads.append(threading.current_thread().name)
            return found(*args)

        return called

    monkeypatch.setattr(routes, "trace_body", noted(routes.trace_body))
    monkeypatch.setattr(reading, "carriers", noted(reading.carriers))
    complete(http, {"x-quire-program-id": "aside"})
    assert trace(http, "aside")["programs"]
    assert len(threads) == 2
    assert "test-server" not in threads


def test_what_nobody_launched_is_a_404(http: httpx.Client) -> None:
    response = http.get("/v1/programs/prog-nobody/trace")
    assert response.status_code == 404
    assert "prog-nobody" in response.json()["error"]["message"]


def test_another_tenants_program_is_not_shown() -> None:
    names = ("mine", "other")
    tenants = [
        TenantConfig(TenantId(name), api_keys=(f"key-of-{name}-0123456789",)) for name in names
    ]
    with running_server(tenants=tenants) as server:
        keys = {name: {"authorization": f"Bearer key-of-{name}-0123456789"} for name in names}
        with httpx.Client(base_url=server.url, timeout=60) as http:
            complete(http, keys["mine"] | {"x-quire-program-id": "secret"})
            path = "/v1/programs/secret/trace"
            assert http.get(path, headers=keys["mine"]).status_code == 200
            assert http.get(path, headers=keys["other"]).status_code == 404
            assert http.get(path).status_code == 401
