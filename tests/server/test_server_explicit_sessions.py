"""``/v1/sessions``: the sessions of the headers, created, looked at and ended by themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from request_log import RequestLines
from scripted_server import GatedEngine, RunningServer, running_server

from quire.core.config import ServerConfig, TenantConfig
from quire.core.ids import TenantId
from quire.node.sessions.sessions import SessionLimits
from quire.programs.sdk import inferlet

CHAT = "/v1/chat/completions"
SESSIONS = "/v1/sessions"


def create(http: httpx.Client, status: int = 201, **body: Any) -> dict[str, Any]:
    response = http.post(SESSIONS, json=body)
    assert response.status_code == status, response.text
    answered: dict[str, Any] = response.json()
    return answered


def ask(http: httpx.Client, session: str, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = http.post(
        CHAT,
        json={"messages": [{"role": "user", "content": "say ab"}]},
        headers={"x-quire-program-id": session, **named},
    )
    assert response.status_code == 200, response.text
    return response


def settled(http: httpx.Client, made: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The session and its program, once a message that was still under way when its last answer was
    complete has been counted."""
    while True:
        found = http.get(f"{SESSIONS}/{made['id']}").json()
        programs = http.get("/v1/programs").json()["data"]
        if http.get(f"{SESSIONS}/{made['id']}").json() == found:
            (listed,) = [one for one in programs if one["id"] == made["program"]]
            return found, listed


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return error


def test_a_session_is_there_before_its_first_request(http: httpx.Client) -> None:
    made = create(
        http,
        id="made",
        kind="agent",
        priority=3,
        deadline_s=60,
        idle_ttl_s=30,
        metadata={"agent": "x"},
    )
    assert http.get(f"{SESSIONS}/made").json() == made
    assert http.get(f"{SESSIONS}/{made['program']}").json() == made
    expected = {
        "id": "made",
        "object": "session",
        "state": "idle",
        "parent": None,
        "kind": "agent",
        "priority": 3,
        "deadline_s": 60.0,
        "idle_ttl_s": 30.0,
        "metadata": {"agent": "x"},
        "num_calls": 0,
        "num_running_calls": 0,
    }
    assert {name: made[name] for name in expected} == expected
    assert made["figures"]["service_s"] == 0.0
    listed = {one["id"]: one for one in http.get("/v1/programs").json()["data"]}
    assert listed[made["program"]]["form"] == "session"


@pytest.mark.parametrize("by", ["id", "program"])
def test_requests_that_name_it_are_its_own(http: httpx.Client, by: str) -> None:
    made = create(http)
    answer = ask(http, made[by], x_quire_thread_id="one")
    ask(http, made[by], x_quire_thread_id="two")
    assert answer.headers["x-quire-program-id"] == made["program"]
    found, listed = settled(http, made)
    figures = found["figures"]
    assert (found["num_calls"], found["num_running_calls"], found["state"]) == (2, 0, "idle")
    assert (figures["num_threads"], figures["num_generated_tokens"]) == (2, 6)
    assert 0.0 < figures["path_s"] <= figures["service_s"]
    process = listed["process"]
    assert {name: process[name] for name in figures if name in process} == figures
    assert {"path_s", "num_threads"} <= process.keys()


def test_a_session_that_a_header_made_is_found_too(http: httpx.Client) -> None:
    answer = ask(http, "of-a-header")
    found = http.get(f"{SESSIONS}/of-a-header").json()
    assert found["program"] == answer.headers["x-quire-program-id"]
    assert found["idle_ttl_s"] == 600.0
    assert create(http, 200, id="of-a-header")["num_calls"] == 1


def test_deadline_kind_and_parent_reach_control(http: httpx.Client, server: RunningServer) -> None:
    create(http, id="above", kind="writer")
    create(http, id="below", parent="above", kind="critic", priority=-2, deadline_s=5)

    def figures(controller: Any) -> tuple[Any, ...]:
        by_name = {one.client_id: one for one in controller._table.programs()}
        above, below = by_name["above"], by_name["below"]
        after_s = below.deadline_s - below.started_s
        return below.parent == above.id, above.kind, below.kind, below.priority, round(after_s, 6)

    # a family is of its root's kind
    assert server.node._parts.control.call(figures) == (True, "writer", "writer", 2, 5.0)
    assert http.get(f"{SESSIONS}/below").json()["parent"] == "above"
    listed = {one["client_id"]: one for one in http.get("/v1/programs").json()["data"]}
    below, above = listed["below"], listed["above"]
    assert (below["parent"], below["priority"]) == (above["id"], -2)
    assert above["parent"] is None
    assert 0.0 < above["created"] <= below["created"]


def test_creating_it_again_is_the_same_session_or_a_conflict(http: httpx.Client) -> None:
    made = create(http, id="twice", idle_ttl_s=50, metadata={"a": "b"})
    assert create(http, 200, id="twice", idle_ttl_s=50, metadata={"a": "b"}) == made
    for changed, name in (({"idle_ttl_s": 51}, "idle_ttl_s"), ({"priority": 1}, "priority")):
        body = {"id": "twice", "idle_ttl_s": 50, "metadata": {"a": "b"}, **changed}
        response = http.post(SESSIONS, json=body)
        assert response.status_code == 409
        assert error_of(response)["code"] == "already_exists"
        assert error_of(response)["param"] == name
        assert response.headers["x-should-retry"] == "false"


def test_an_ended_session_is_gone_and_its_name_free(http: httpx.Client) -> None:
    made = create(http, id="short")
    deleted = http.delete(f"{SESSIONS}/short")
    assert deleted.json() == {"id": "short", "object": "session.deleted", "deleted": True}
    for response in (http.get(f"{SESSIONS}/short"), http.delete(f"{SESSIONS}/{made['program']}")):
        assert response.status_code == 404
        assert error_of(response)["code"] == "unknown_handle"
    assert create(http, id="short")["program"] != made["program"]


@pytest.fixture(scope="module")
def engine() -> GatedEngine:
    return GatedEngine()


@pytest.fixture(scope="module")
def gated(engine: GatedEngine) -> Iterator[RunningServer]:
    with running_server(ServerConfig(drain_timeout_s=1.0), load=lambda: engine) as running:
        yield running


def test_ending_cancels_what_runs_and_frees_its_memory(
    gated: RunningServer, engine: GatedEngine, request_lines: RequestLines
) -> None:
    engine.arrived.clear()
    engine.close_after(3)
    body = {"messages": [{"role": "user", "content": f"say {'word ' * 60}"}], "stream": True}
    headers = {"x-quire-program-id": "running"}
    with httpx.Client(base_url=gated.url, timeout=60) as http:
        with http.stream("POST", CHAT, json=body, headers=headers) as stream:
            assert engine.arrived.wait(60)
            assert http.get(f"{SESSIONS}/running").json()["num_running_calls"] == 1
            assert http.delete(f"{SESSIONS}/running").status_code == 200
            engine.gate.set()
            text = "".join(stream.iter_text())
        assert "its client has ended the session" in text
        assert http.get(f"{SESSIONS}/running").status_code == 404
    assert request_lines.next()["outcome"] == "failed"
    assert gated.num_held_blocks() == 0


def test_the_list_has_pages_newest_first(gated: RunningServer) -> None:
    with httpx.Client(base_url=gated.url, timeout=60) as http:
        for number in range(5):
            create(http, id=f"page-{number}")
        first = http.get(SESSIONS, params={"limit": 2}).json()
        assert [one["id"] for one in first["data"]] == ["page-4", "page-3"]
        assert (first["has_more"], first["last_id"]) == (True, "page-3")
        rest = http.get(SESSIONS, params={"after": "page-3"}).json()
        assert [one["id"] for one in rest["data"]][:3] == ["page-2", "page-1", "page-0"]
        assert http.get(SESSIONS, params={"after": "nothing"}).status_code == 400


def test_no_tenant_sees_the_sessions_of_another() -> None:
    tenants = [TenantConfig(TenantId(name), api_keys=(name,)) for name in ("a", "b")]
    with running_server(tenants=tenants) as running:
        a, b = (
            httpx.Client(base_url=running.url, headers={"authorization": f"Bearer {name}"})
            for name in ("a", "b")
        )
        with a, b:
            made = create(a, id="mine")
            for path in (f"{SESSIONS}/mine", f"{SESSIONS}/{made['program']}"):
                assert b.get(path).status_code == b.delete(path).status_code == 404
            assert b.get(SESSIONS).json()["data"] == []
            refused = b.post(SESSIONS, json={"parent": "mine"})
            assert refused.status_code == 404
            assert create(b, id="mine")["program"] != made["program"]
            assert [one["program"] for one in a.get(SESSIONS).json()["data"]] == [made["program"]]


def test_with_all_sessions_busy_one_more_is_429(
    gated: RunningServer, engine: GatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = gated.node._parts.sessions
    for session in gated.call(lambda: table.all(TenantId("default"))):
        gated.call(session.end)
    monkeypatch.setattr(table, "limits", SessionLimits(max_sessions=1))
    engine.arrived.clear()
    engine.close_after(3)
    body = {"messages": [{"role": "user", "content": f"say {'word ' * 60}"}], "stream": True}
    headers = {"x-quire-program-id": "busy"}
    with httpx.Client(base_url=gated.url, timeout=60) as http:
        try:
            with http.stream("POST", CHAT, json=body, headers=headers):
                assert engine.arrived.wait(60)
                refused = http.post(SESSIONS, json={"id": "more"})
        finally:
            engine.gate.set()
    assert refused.status_code == 429
    assert refused.headers["retry-after"]
    assert error_of(refused)["code"] == "quota_exceeded"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"ttl": 3}, "ttl"),
        ({"id": ""}, "id"),
        ({"id": "a/b"}, "id"),
        ({"id": ".."}, "id"),
        ({"id": " a"}, "id"),
        ({"id": "a\n"}, "id"),
        ({"id": "é"}, "id"),
        ({"id": "x" * 257}, "id"),
        ({"idle_ttl_s": 0}, "idle_ttl_s"),
        ({"idle_ttl_s": 86_401}, "idle_ttl_s"),
        ({"deadline_s": "soon"}, "deadline_s"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(
    http: httpx.Client, body: dict[str, Any], param: str
) -> None:
    response = http.post(SESSIONS, json=body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


def test_an_unknown_parent_is_refused_here_and_ignored_in_a_header(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    refused = http.post(SESSIONS, json={"parent": "nobody"})
    assert refused.status_code == 404
    assert "nobody" in error_of(refused)["message"]
    with caplog.at_level(logging.WARNING, "quire.node.sessions.sessions"):
        for _ in range(2):
            ask(http, "orphan", x_quire_parent_id="nobody")
        ask(http, "of-itself", x_quire_parent_id="of-itself")
    told = [record.getMessage() for record in caplog.records if "parent" in record.getMessage()]
    assert [("'nobody'" in text, "'of-itself'" in text) for text in told] == [
        (True, False),
        (False, True),
    ]
    assert http.get(f"{SESSIONS}/orphan").json()["parent"] is None


def test_a_parent_that_a_later_request_names_is_ignored_and_logged_once(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """It might close a cycle: here the child is named as the parent of its parent."""
    with caplog.at_level(logging.WARNING, "quire.node.sessions"):
        ask(http, "elder")
        for _ in range(2):
            ask(http, "younger", x_quire_parent_id="elder")
        elder = http.get(f"{SESSIONS}/elder").json()
        ask(http, "younger", x_quire_parent_id=elder["program"])  # the same one by its other id
        assert "parent" not in caplog.text
        for _ in range(2):
            ask(http, "elder", x_quire_parent_id="younger")
        ask(http, "younger", x_quire_parent_id="nobody")
    first, second = [one.getMessage() for one in caplog.records if "parent" in one.getMessage()]
    assert "names the parent 'younger'" in first
    assert "without a parent" in first
    assert "names the parent 'nobody'" in second
    assert "below 'elder'" in second
    assert http.get(f"{SESSIONS}/elder").json()["parent"] is None
    assert http.get(f"{SESSIONS}/younger").json()["parent"] == "elder"


@inferlet()
async def waits(api: Any) -> None:
    """Waits until it is ended."""
    await api.receive()


def test_a_launched_program_may_be_a_parent_until_it_ends(
    http: httpx.Client, server: RunningServer
) -> None:
    handle = server.call(lambda: server.node.launch(waits, tenant=TenantId("default")))
    ask(http, "launched-by-header", x_quire_parent_id=handle.id)
    create(http, id="launched-by-body", parent=handle.id)

    def parents(controller: Any) -> list[Any]:
        programs = controller._table.programs()
        return [one.parent for one in programs if (one.client_id or "").startswith("launched-by-")]

    assert server.node._parts.control.call(parents) == [handle.program] * 2
    server.call(handle.terminate)
    server.wait(handle.wait_ended())
    refused = http.post(SESSIONS, json={"parent": handle.id})
    assert refused.status_code == 404
    assert "has ended" in error_of(refused)["message"]
