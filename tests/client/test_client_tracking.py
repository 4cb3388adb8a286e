"""What tracked HTTP clients put into requests, and what they tell a server, which is a mock."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from quire.client import carried, program, track
from quire.core.errors import InvalidArgument

URL = "http://node.test/base/v1"
CHAT = f"{URL}/chat/completions"
ANSWER = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
    ],
}


class Node:
    """Answers like a node, and keeps what it was sent. ``statuses``: of the next calls."""

    def __init__(self) -> None:
        self.calls: list[httpx.Headers] = []
        self.told: list[tuple[str, str, Any]] = []
        self.told_by: list[str] = []
        self.statuses: list[int] = []
        self.sessions_status = 201

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if "/v1/sessions" in request.url.path:
            assert "x-quire-program-id" not in request.headers
            body = json.loads(request.content) if request.content else None
            self.told.append((request.method, request.url.raw_path.decode(), body))
            self.told_by.append(threading.current_thread().name)
            assert request.headers["authorization"] == "Bearer key"
            return httpx.Response(self.sessions_status, json={})
        self.calls.append(request.headers)
        status = self.statuses.pop(0) if self.statuses else 200
        return httpx.Response(status, json=ANSWER, headers={"retry-after-ms": "1"})

    def clients(self) -> tuple[openai.OpenAI, openai.AsyncOpenAI]:
        transport = httpx.MockTransport(self)
        named: dict[str, Any] = {"base_url": URL, "api_key": "key"}
        http, http_async = httpx.Client(transport=transport), httpx.AsyncClient(transport=transport)
        return (
            track(openai.OpenAI(http_client=http, **named)),
            track(openai.AsyncOpenAI(http_client=http_async, **named)),
        )

    def threads(self) -> list[tuple[str | None, str | None]]:
        names = ("x-quire-thread-id", "x-quire-parent-thread-id")
        return [(call.get(names[0]), call.get(names[1])) for call in self.calls]


@pytest.fixture
def node() -> Node:
    return Node()


def ask(client: openai.OpenAI) -> None:
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])


async def ask_async(client: openai.AsyncOpenAI) -> None:
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])


def tags(call: httpx.Headers) -> dict[str, str]:
    return {name: value for name, value in call.items() if name.startswith("x-quire")}


def test_importing_changes_nothing_and_needs_no_openai() -> None:
    code = (
        "import sys, httpx; before = dict(vars(httpx.Client)); import quire.client; "
        "assert 'openai' not in sys.modules and 'httpx2' not in sys.modules; "
        "assert before == dict(vars(httpx.Client))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_outside_of_a_program_nothing_is_sent(node: Node) -> None:
    client, _ = node.clients()
    ask(client)
    with program("a"):
        pass
    ask(client)
    assert [tags(call) for call in node.calls] == [{}, {}]
    assert node.told == []


def test_a_block_is_one_session_from_its_first_call_to_its_end(node: Node) -> None:
    client, _ = node.clients()
    with program("agent", priority=2, deadline_s=9) as one:
        ask(client)
        ask(client.with_options(max_retries=0, default_headers={"x-own": "1"}))
    expected = {"x-quire-program-id": one.id, "x-quire-thread-id": "main"}
    assert [tags(call) for call in node.calls] == [expected, expected]
    assert one.id.startswith("agent-")
    settings = {"kind": "agent", "priority": 2, "deadline_s": 9}
    body = {"id": one.id, **settings, "metadata": {"name": "agent"}}
    path = "/base/v1/sessions"
    assert node.told == [("POST", path, body), ("DELETE", f"{path}/{one.id}", None)]


def test_two_blocks_of_one_name_are_two_programs(node: Node) -> None:
    client, _ = node.clients()
    for _ in range(2):
        with program("agent"):
            ask(client)
    first, second = (call["x-quire-program-id"] for call in node.calls)
    assert first != second


def test_a_program_inside_another_is_its_child_and_the_parent_is_told_of_first(node: Node) -> None:
    client, _ = node.clients()
    with program("outer") as outer:
        with program("inner") as inner:
            ask(client)
        ask(client)
    assert tags(node.calls[0])["x-quire-parent-id"] == outer.id
    assert [call["x-quire-program-id"] for call in node.calls] == [inner.id, outer.id]
    told = [(method, body and (body["id"], body.get("parent"))) for method, _, body in node.told]
    posts = [("POST", (outer.id, None)), ("POST", (inner.id, outer.id))]
    assert told == [*posts, ("DELETE", None), ("DELETE", None)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_retry_has_the_same_ids(node: Node, stream: bool) -> None:
    client, _ = node.clients()
    node.statuses = [500, 503]
    with program("agent"):
        client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=stream
        )
    first, *others = [tags(call) for call in node.calls]
    assert others == [first, first]
    assert [method for method, *_ in node.told] == ["POST", "DELETE"]


async def test_tasks_are_threads_with_the_thread_that_they_were_forked_from(node: Node) -> None:
    _, client = node.clients()

    async def forks() -> None:
        await ask_async(client)
        await asyncio.create_task(ask_async(client))
        await ask_async(client)

    async with program("agent") as one:
        await ask_async(client)
        await asyncio.create_task(forks())
        await ask_async(client)
    assert node.threads() == [
        ("main", None),
        ("thread-1", "main"),
        ("thread-2", "thread-1"),
        ("thread-1", "main"),
        ("main", None),
    ]
    assert {call["x-quire-program-id"] for call in node.calls} == {one.id}


async def test_tasks_side_by_side_are_different_threads_and_programs(node: Node) -> None:
    _, client = node.clients()
    ids = {}

    async def child(name: str) -> None:
        async with program(name) as one:
            ids[name] = one.id
            await ask_async(client)

    async with program("outer") as outer:
        await asyncio.gather(*(ask_async(client) for _ in range(3)))
        await asyncio.gather(child("a"), child("b"))
    assert sorted(node.threads()[:3]) == [(f"thread-{number}", "main") for number in (1, 2, 3)]
    assert {call["x-quire-program-id"] for call in node.calls[3:]} == set(ids.values())
    assert {call["x-quire-parent-id"] for call in node.calls[3:]} == {outer.id}
    deleted = [path.rpartition("/")[2] for method, path, _ in node.told if method == "DELETE"]
    assert deleted[-1] == outer.id
    assert set(deleted) == {outer.id, *ids.values()}


@pytest.mark.parametrize("wrap", [carried, lambda work: work])
def test_a_python_thread_is_one_of_the_program_if_its_context_is_carried(
    node: Node, wrap: Callable[[Callable[[], None]], Callable[[], None]]
) -> None:
    client, _ = node.clients()
    with program("agent"):
        ask(client)
        work = wrap(lambda: ask(client))
        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    rest = node.threads()[1:]
    if wrap is carried:
        assert rest == [("thread-1", "main"), ("thread-2", "main")]
    else:
        assert rest == [(None, None)] * 2


async def test_to_thread_carries_the_context_by_itself(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    client, _ = node.clients()
    async with program("agent"):
        await asyncio.to_thread(ask, client)
    assert node.threads() == [("thread-1", "main")]
    assert [method for method, *_ in node.told] == ["POST", "DELETE"]
    assert node.told_by[-1] != threading.current_thread().name, "a sync client holds the loop up"
    assert caplog.records == []


async def test_a_call_after_the_end_belongs_to_the_program_around_it(node: Node) -> None:
    _, client = node.clients()
    over = asyncio.Event()

    async def late() -> None:
        await over.wait()
        await ask_async(client)

    async with program("outer") as outer:
        async with program("inner"):
            task = asyncio.create_task(late())
        over.set()
        await task
    assert node.calls[0]["x-quire-program-id"] == outer.id


async def test_a_loop_does_not_wait_for_the_end_of_a_sync_block(node: Node) -> None:
    client, _ = node.clients()
    with program("agent"):
        ask(client)
    for thread in threading.enumerate():
        if thread.name == "quire-session-end":
            await asyncio.to_thread(thread.join)
    assert [method for method, *_ in node.told] == ["POST", "DELETE"]
    assert node.told_by[-1] != threading.current_thread().name


def test_what_a_caller_says_itself_is_left_alone(node: Node) -> None:
    client, _ = node.clients()
    with program("agent"):
        ask(client.with_options(default_headers={"X-Quire-Program-ID": "mine"}))
    assert tags(node.calls[0]) == {"x-quire-program-id": "mine"}


def test_tracking_twice_tags_once_and_keeps_other_hooks(node: Node) -> None:
    seen: list[str] = []
    http = httpx.Client(
        transport=httpx.MockTransport(node),
        event_hooks={"request": [lambda request: seen.append(request.method)]},
    )
    assert track(track(http)) is http
    client = openai.OpenAI(base_url=URL, api_key="key", http_client=http)
    assert track(client) is client
    assert len(http.event_hooks["request"]) == 2
    with program("agent"):
        ask(client)
    assert seen == ["POST", "POST", "DELETE"]


@pytest.mark.parametrize("status", [404, 429, 500])
def test_a_server_that_refuses_the_session_still_gets_the_calls(
    node: Node, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    client, _ = node.clients()
    node.sessions_status = status
    with program("agent") as one:
        ask(client)
        ask(client)
    assert [call["x-quire-program-id"] for call in node.calls] == [one.id, one.id]
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    num_told = 1 if status == 404 else 2  # it may have sessions later
    assert [record.name for record in told] == ["quire.client.tracking"] * num_told
    assert [method for method, *_ in node.told] == ["POST"] * num_told


@pytest.mark.parametrize("status", [404, 500])
def test_an_end_that_fails_is_logged_unless_the_session_is_gone(
    node: Node, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    client, _ = node.clients()
    with program("agent"):
        ask(client)
        node.sessions_status = status
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [("did not end" in text) for text in told] == ([] if status == 404 else [True])


@pytest.mark.parametrize("status", [404, 500])
async def test_an_end_on_a_loop_that_fails_is_logged_unless_the_session_is_gone(
    node: Node, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    _, client = node.clients()
    async with program("agent"):
        await ask_async(client)
        node.sessions_status = status
    assert node.told[-1][0] == "DELETE"
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [("did not end" in text) for text in told] == ([] if status == 404 else [True])


def test_an_error_of_the_block_is_raised_and_the_session_ends(node: Node) -> None:
    client, _ = node.clients()

    def work() -> None:
        with program("agent"):
            ask(client)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert node.told[-1][0] == "DELETE"


@pytest.mark.parametrize("name", ["", "a" * 129, "a/b", ".a", "é", "a\n"])
def test_a_name_that_no_header_or_path_holds_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="name"):
        program(name)


def test_a_program_is_used_once() -> None:
    one = program("agent")
    with pytest.raises(InvalidArgument, match="beginning of its block"):
        _ = one.id
    with one:
        pass
    with pytest.raises(InvalidArgument, match="twice"):
        one.__enter__()


def test_what_is_no_client_is_refused_with_a_remedy() -> None:
    with pytest.raises(InvalidArgument, match="http_client=track"):
        track(object())
