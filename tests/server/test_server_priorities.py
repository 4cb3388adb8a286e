"""A request's priority is its own: it counts once, and not for the session's other requests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
from scripted_server import GatedEngine, RunningServer, running_server

from quire.control import Controller
from quire.control.scheduler.order.ranking import priority_of

CHAT = "/v1/chat/completions"


def body(text: str, priority: int | None = None) -> dict[str, object]:
    asked: dict[str, object] = {"messages": [{"role": "user", "content": text}]}
    return asked if priority is None else {**asked, "priority": priority}


def standing(controller: Controller) -> list[int]:
    """The priorities of all commands that have not ended; a higher one runs first."""
    programs = controller._table.programs()
    return sorted(priority_of(entry) for one in programs for entry in one.entries.values())


@contextmanager
def held(
    asked: dict[str, object], headers: dict[str, str]
) -> Iterator[tuple[RunningServer, list[int]]]:
    """A server, and the priorities of what stands in control while ``asked`` waits for its
    engine."""
    engine = GatedEngine()
    with running_server(load=lambda: engine) as server, ThreadPoolExecutor(1) as pool:
        created = {"id": "made", "priority": 2}
        httpx.post(f"{server.url}/v1/sessions", json=created).raise_for_status()
        engine.gate.clear()
        answer = pool.submit(httpx.post, server.url + CHAT, json=asked, headers=headers, timeout=60)
        try:
            assert engine.arrived.wait(60)
            found = server.node._parts.control.call(standing)
        finally:
            engine.gate.set()
        answer.result().raise_for_status()
        yield server, found


def test_a_request_of_a_new_session_counts_once() -> None:
    for headers in ({}, {"x-session-id": "new"}):
        with held(body("say a", 3), headers) as (_, priorities):
            assert set(priorities) == {-3}


def test_the_priority_of_a_request_is_not_left_to_the_session() -> None:
    with held(body("say a", 3), {"x-session-id": "new"}) as (server, _):
        session = httpx.get(f"{server.url}/v1/sessions/new").json()
        assert (session["priority"], session["num_calls"]) == (0, 1)
        assert httpx.post(f"{server.url}/v1/sessions", json={"id": "new"}).status_code == 200


def test_the_priority_of_a_request_is_added_to_that_of_a_created_session() -> None:
    with held(body("say a", 3), {"x-session-id": "made"}) as (_, priorities):
        assert set(priorities) == {-5}
    with held(body("say a"), {"x-session-id": "made"}) as (_, priorities):
        assert set(priorities) == {-2}
