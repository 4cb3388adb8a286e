"""``/v1/programs/changes``: a reader gets what changed, its own programs only, behind the keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from scripted_server import MODEL, running_server

from quire.core.config import ServerConfig, TenantConfig
from quire.core.ids import TenantId


def look(http: httpx.Client, since: str | None = None) -> dict[str, Any]:
    query = {} if since is None else {"since": since}
    response = http.get("/v1/programs/changes", params=query)
    assert response.status_code == 200, response.text
    changes: dict[str, Any] = response.json()
    return changes


def session(http: httpx.Client, name: str) -> None:
    body = {"model": MODEL, "prompt": "say yes", "max_tokens": 8}
    answer = http.post("/v1/completions", json=body, headers={"x-quire-program-id": name})
    assert answer.status_code == 200, answer.text


def test_a_reader_gets_what_has_changed_and_nothing_else(http: httpx.Client) -> None:
    session(http, "first")
    whole = look(http)
    assert whole["whole"]
    (row,) = (row for row in whole["programs"] if row["client_id"] == "first")
    assert (row["form"], row["state"]) == ("session", "idle")
    assert row["wait"]["reason"] == "program"
    assert abs(row["wait"]["since"] - whole["node"]["time"]) < 600
    assert row["num_generated_tokens"] > 0
    assert (row["engines"], row["num_calls"]) == ([], 0), (
        "its call has ended, and its queue with it"
    )
    settled = look(http, whole["next"])
    settled = look(http, settled["next"])
    assert (settled["whole"], settled["programs"], settled["ended"]) == (False, [], [])
    session(http, "second")
    later = look(http, settled["next"])
    assert [row["client_id"] for row in later["programs"]] == ["second"]
    assert later["node"]["policy"] == "fcfs"
    assert later["engines"][0]["state"] == "ready"


@pytest.mark.parametrize("since", ["-", "7", "x-1", "1-", "1--2", "1-" + "9" * 16])
def test_a_number_that_was_never_given_out_is_refused(http: httpx.Client, since: str) -> None:
    refused = http.get("/v1/programs/changes", params={"since": since})
    assert refused.status_code == 400
    assert "leave it out" in refused.json()["error"]["message"]


def test_a_number_from_before_the_start_begins_anew(http: httpx.Client) -> None:
    session(http, "kept")
    changes = look(http, "12-3")
    assert changes["whole"]
    assert "kept" in [row["client_id"] for row in changes["programs"]]


def test_tenants_see_their_own_programs_alone() -> None:
    tenants = [
        TenantConfig(TenantId(name), api_keys=(f"key-of-{name}-0123456789",)) for name in "ab"
    ]
    with running_server(ServerConfig(drain_timeout_s=1.0), tenants) as server:
        keys = {name: {"authorization": f"Bearer key-of-{name}-0123456789"} for name in "ab"}
        for name, headers in keys.items():
            with httpx.Client(base_url=server.url, timeout=60, headers=headers) as http:
                session(http, f"session-of-{name}")
        for name, headers in keys.items():
            with httpx.Client(base_url=server.url, timeout=60, headers=headers) as http:
                rows = look(http)["programs"]
                assert [row["client_id"] for row in rows] == [f"session-of-{name}"]
                assert [row["tenant"] for row in rows] == [name]
        with httpx.Client(base_url=server.url, timeout=60) as http:
            assert http.get("/v1/programs/changes").status_code == 401


def stream(
    http: httpx.Client, headers: dict[str, str] | None = None
) -> AbstractContextManager[httpx.Response]:
    accept = {"accept": "text/event-stream"}
    return http.stream("GET", "/v1/programs/changes", headers={**accept, **(headers or {})})


def events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Id and data of each event, until the end."""
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    event_id = ""
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if name == "id":
            event_id = value
        elif name == "data" and value != "[DONE]":
            yield event_id, json.loads(value)


def until(following: Iterator[tuple[str, Any]], client_id: str) -> str:
    """The id of the first event that tells of the session ``client_id``."""
    for event_id, changes in following:
        if client_id in [row["client_id"] for row in changes["programs"]]:
            return event_id
    raise AssertionError("the stream has ended")


def test_a_stream_tells_what_changes_and_goes_on_where_it_was_cut_off(http: httpx.Client) -> None:
    with stream(http) as response:
        following = events(response)
        _, first = next(following)
        assert first["whole"]
        session(http, "streamed")
        place = until(following, "streamed")
    session(http, "missed")
    with stream(http, {"last-event-id": place}) as response:
        _, changes = next(following := events(response))
        assert not changes["whole"]
        names = [row["client_id"] for row in changes["programs"]]
        assert "missed" in names or until(following, "missed")


def test_a_stream_begins_only_at_a_number_that_was_given_out(http: httpx.Client) -> None:
    with stream(http, {"last-event-id": "yesterday"}) as response:
        assert response.status_code == 400
        assert "Last-Event-ID" in response.read().decode()


def test_a_stream_ends_with_the_node_and_is_behind_its_keys() -> None:
    tenants = [TenantConfig(TenantId("a"), api_keys=("key-of-a-0123456789",))]
    key = {"authorization": "Bearer key-of-a-0123456789"}
    with (
        httpx.Client(timeout=60) as http,
        running_server(ServerConfig(drain_timeout_s=1.0), tenants) as server,
    ):
        http.base_url = server.url  # type: ignore[assignment]
        with stream(http) as response:
            assert response.status_code == 401
        with stream(http, key) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("id: ")
            server.loop.call_soon_threadsafe(server.service.request_stop)
            said = [line for line in lines if line]
            assert said[-1] == "data: [DONE]"
            states = [json.loads(line[6:])["engines"] for line in said[:-1] if line[:5] == "data:"]
            assert states[-1][0]["state"] == "stopped"
