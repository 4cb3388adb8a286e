"""Sessions and their calls: identity, ends, cancellation in every state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from math import inf, nan
from typing import Any

import pytest
from fake_node import TENANT, StartNode, fake_config, until

from quire.core.actions import Action
from quire.core.calls import CreateQueue, Issue
from quire.core.config import TenantConfig
from quire.core.errors import (
    Draining,
    EngineLost,
    InvalidArgument,
    ProgramCancelled,
    ProgramFailed,
    QuotaExceeded,
)
from quire.core.events import Called, Event, ProgramStarted
from quire.core.ids import TenantId
from quire.node import ConversationTurn, Node, SessionLimits
from quire.node.sessions.handle import SessionHandle
from quire.programs.api import Api
from quire.programs.builtin import CompletionRequest, complete
from quire.testing import FakeTokenizer


def request(text: str = "hello", max_tokens: int = 6) -> CompletionRequest:
    tokens = tuple(FakeTokenizer().encode(text))
    return CompletionRequest(prompt=tokens, max_tokens=max_tokens, ignore_eos=True)


async def token_ids(session: SessionHandle, asked: CompletionRequest) -> list[int]:
    call = session.call(complete, asked)
    tokens = [token async for chunk in call for token in chunk.token_ids]
    await call.wait_closed()
    return tokens


def holds_nothing(node: Node) -> bool:
    rows = [entry.row for entry in node.processes()]
    return all(row.num_queues == row.num_pages == row.num_pending_commands == 0 for row in rows)


async def stays(api: Api, asked: object) -> AsyncGenerator[str, None]:
    """Holds a queue until it is ended from outside."""
    api.create_queue()
    yield "started"
    yield "never asked for"


async def test_a_call_completes_and_is_deterministic(node: Node) -> None:
    session = node.session(TENANT, "conversation-1")
    first = await token_ids(session, request())
    assert len(first) == 6
    assert await token_ids(session, request()) == first
    (entry,) = node.processes()
    assert (entry.id, entry.row.form, entry.row.client_id) == (
        session.id,
        "session",
        "conversation-1",
    )


async def test_a_call_that_has_ended_takes_no_place_of_a_running_one(node: Node) -> None:
    session = node.session(TENANT)
    traceparent = f"00-{'a' * 32}-{'b' * 16}-01"
    async with aclosing(session.call(stays, None, traceparent=traceparent)) as call:
        assert len(session._parents._running) == len(session._sinks._sinks) == 1
        assert await anext(aiter(call)) == "started"
    assert len(session._parents._running) == len(session._sinks._sinks) == 0


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("deadline_s", nan),
        ("deadline_s", -1.0),
        ("deadline_s", inf),
        ("idle_ttl_s", nan),
        ("idle_ttl_s", 0.0),
    ],
)
async def test_a_time_that_is_none_is_refused_by_name(
    node: Node, name: str, seconds: float
) -> None:
    times: dict[str, Any] = {name: seconds}
    with pytest.raises(InvalidArgument, match=f"^{name} is"):
        node.create_session(TENANT, "s", **times)
    assert node.processes() == []


async def test_calls_of_one_session_run_side_by_side_with_the_same_tokens(node: Node) -> None:
    session = node.session(TENANT, "s")
    texts = ["one", "two", "three", "four"]
    alone = [await token_ids(session, request(text)) for text in texts]
    together = await asyncio.gather(*(token_ids(session, request(text)) for text in texts))
    assert together == alone
    assert len(node.processes()) == 1


async def test_the_same_name_is_the_same_session_until_it_ends(node: Node) -> None:
    session = node.session(TENANT, "s")
    assert node.session(TENANT, "s") is session
    assert node.session(TENANT, "t") is not session
    session.end()
    session.end()
    assert node.session(TENANT, "s") is not session
    with pytest.raises(ProgramCancelled, match="open it again"):
        session.call(complete, request())


async def test_ending_waits_for_the_call_under_way(node: Node) -> None:
    session = node.session(TENANT, "s")
    call = session.call(stays, None)
    assert await anext(aiter(call)) == "started"
    session.end("the client said so")
    assert [entry.id for entry in node.processes()] == [session.id]
    call.cancel()
    await call.wait_closed()
    assert node.processes() == []


async def test_a_nameless_call_is_a_program_of_one(node: Node) -> None:
    session = node.session(TENANT)
    await token_ids(session, request())
    assert node.processes() == []


async def test_control_is_told_of_a_session_with_what_its_call_asks_for(node: Node) -> None:
    seen: list[Event] = []

    class Watch:
        def observe(self, event: Event, actions: Sequence[Action]) -> None:
            seen.append(event)

        def observe_failure(self, event: Event, error: Exception) -> None: ...

        def flush(self) -> None: ...

    node._parts.observers.append(Watch())
    await token_ids(node.session(TENANT), request())
    started, created, issued = seen[:3]
    assert isinstance(started, ProgramStarted)
    assert isinstance(created, Called)
    assert isinstance(created.call, CreateQueue)
    assert isinstance(issued, Called)
    assert isinstance(issued.call, Issue)
    assert started.more
    assert created.more
    assert not issued.more


async def test_a_conversation_is_recognised_by_our_answer(node: Node) -> None:
    ask, answer = [ConversationTurn("user", "hi")], ConversationTurn("assistant", "hello")
    session = node.session(TENANT, turns=ask)
    await token_ids(session, request())
    session.remember(ask, answer)
    assert node.session(TENANT, turns=[*ask, answer, ConversationTurn("user", "more")]) is session
    assert node.session(TENANT, turns=ask) is not session


async def test_idle_sessions_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    session = node.session(TENANT, "s")
    busy = node.session(TENANT, "busy").call(stays, None)
    await token_ids(session, request())
    node._parts.sessions._end_idle()
    assert not session.over
    now_s = node._parts.sessions._loop_time()
    monkeypatch.setattr(node._parts.sessions, "_loop_time", lambda: now_s + 601)
    node._parts.sessions._end_idle()
    assert session.over
    assert [entry.row.client_id for entry in node.processes()] == ["busy"]
    busy.cancel()


async def test_each_session_ends_after_its_own_idle_time(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = node.session(TENANT, "common")
    long, _ = node.create_session(TENANT, "long", idle_ttl_s=3600)
    short, _ = node.create_session(TENANT, "short", idle_ttl_s=5)
    table = node._parts.sessions
    started_s = table._loop_time()
    assert table._sweep is not None
    assert table._sweep.when() <= started_s + 5, "the timer is that of the earliest"
    ended = []
    for after_s in (4, 6, 599, 601, 3599, 3601):
        monkeypatch.setattr(table, "_loop_time", lambda now_s=started_s + after_s: now_s)
        table._end_idle()
        ended.append([one.client_id for one in (short, common, long) if one.over])
    assert ended == [
        [],
        ["short"],
        ["short"],
        ["short", "common"],
        ["short", "common"],
        ["short", "common", "long"],
    ]


async def test_ending_a_session_with_cancel_ends_its_calls(node: Node) -> None:
    session = node.session(TENANT, "s")
    call = session.call(stays, None)
    assert await anext(aiter(call)) == "started"
    session.cancel("enough")
    session.cancel("again")
    with pytest.raises(ProgramCancelled, match="enough"):
        await anext(aiter(call))
    await call.wait_closed()
    assert node.processes() == []


async def test_the_longest_idle_session_makes_room(start_node: StartNode) -> None:
    node = await start_node(session_limits=SessionLimits(max_sessions=2))
    busy, idle = node.session(TENANT, "busy"), node.session(TENANT, "idle")
    call = busy.call(stays, None)
    third = node.session(TENANT, "third")
    assert idle.over
    assert not busy.over
    other = third.call(stays, None)
    with pytest.raises(QuotaExceeded, match="2 are allowed"):
        node.session(TENANT, "fourth")
    call.cancel()
    other.cancel()


async def test_a_tenants_many_sessions_end_none_of_those_of_others(start_node: StartNode) -> None:
    many, few = TenantId("many"), TenantId("few")
    node = await start_node(
        fake_config(tenants=(TenantConfig(many), TenantConfig(few))),
        session_limits=SessionLimits(max_sessions=4),
    )
    first = [node.session(few, str(number)) for number in range(2)]
    own = [node.session(many, str(number)) for number in range(6)]
    assert [session.over for session in first] == [False, False]
    assert [session.over for session in own] == [True] * 4 + [False] * 2
    calls = [session.call(stays, None) for session in own[4:]]
    with pytest.raises(
        QuotaExceeded, match="4 sessions are open, 4 are allowed, and all that could make"
    ):
        node.session(many, "more")
    node.session(few, "new")
    assert [session.over for session in first] == [True, False], "its own, the other's are busy"
    calls[0].cancel()
    await calls[0].wait_closed()
    first[1].end()
    assert node.session(many, "third")
    node.session(few, "newer")
    assert own[4].over, "of the one who has more"
    for call in calls:
        call.cancel()


async def test_an_error_of_the_program_is_the_callers_as_it_is(node: Node) -> None:
    async def refuse(api: Api, asked: object) -> AsyncGenerator[str, None]:
        yield "a part"
        raise InvalidArgument("no such thing")

    async def break_down(api: Api, asked: object) -> AsyncGenerator[str, None]:
        raise ZeroDivisionError
        yield "never"

    items = aiter(node.session(TENANT).call(refuse, None))
    assert await anext(items) == "a part"
    with pytest.raises(InvalidArgument, match="no such thing"):
        await anext(items)
    with pytest.raises(ProgramFailed, match="ZeroDivisionError"):
        await anext(aiter(node.session(TENANT).call(break_down, None)))


async def test_when_control_has_failed_every_call_is_told(node: Node) -> None:
    async def fail() -> None:
        node._parts.control._fail(ZeroDivisionError())

    await asyncio.wrap_future(node._parts.control.submit(fail()))
    session = node.session(TENANT, "s")
    for _ in range(2):
        with pytest.raises(EngineLost, match="controller failed"):
            session.call(complete, request())


@pytest.mark.parametrize("num_read", [0, 1, 3])
async def test_cancelling_frees_everything_whatever_was_read(node: Node, num_read: int) -> None:
    session = node.session(TENANT, "s")
    call = session.call(complete, request(max_tokens=300))
    items = aiter(call)
    for _ in range(num_read):
        await anext(items)
    call.cancel()
    call.cancel()
    await call.wait_closed()
    with pytest.raises(ProgramCancelled, match="by the client"):
        await anext(items)
    assert [item async for item in call] == []
    await until(node, lambda: holds_nothing(node))
    assert len(await token_ids(session, request())) == 6
    call.cancel()


async def test_cancelling_wakes_the_reader(node: Node) -> None:
    call = node.session(TENANT).call(complete, request(max_tokens=3000))
    items = aiter(call)
    await anext(items)

    async def read_on() -> None:
        while True:
            await anext(items)

    reading = asyncio.create_task(read_on())
    await asyncio.sleep(0)
    call.cancel("enough")
    with pytest.raises(ProgramCancelled, match="enough"):
        await reading


async def test_a_reader_that_leaves_ends_its_call(node: Node) -> None:
    session = node.session(TENANT, "s")
    call = session.call(complete, request(max_tokens=3000))
    await anext(aiter(call))
    await call.aclose()
    await call.aclose()
    await call.wait_closed()
    assert not session.calls
    await until(node, lambda: holds_nothing(node))
    unread = session.call(complete, request())
    await unread.aclose()
    assert not session.calls


async def test_a_program_is_never_ahead_of_its_reader(node: Node) -> None:
    made: list[int] = []

    async def make(api: Api, limit: int) -> AsyncGenerator[int, None]:
        for number in range(limit):
            made.append(number)
            yield number

    call = node.session(TENANT).call(make, 1000)
    items = aiter(call)
    assert await anext(items) == 0
    for _ in range(20):
        await asyncio.sleep(0)
    assert made == [0]
    assert [number async for number in items] == list(range(1, 1000))


async def test_draining_refuses_new_calls_and_finishes_running_ones(node: Node) -> None:
    session = node.session(TENANT, "s")
    call = session.call(complete, request(max_tokens=40))
    stopping = asyncio.create_task(node.stop(drain_timeout_s=60))
    await asyncio.sleep(0)
    assert node.health().draining
    assert not node.health().ready
    with pytest.raises(Draining):
        session.call(complete, request())
    with pytest.raises(Draining):
        node.session(TENANT, "t")
    assert sum([len(chunk.token_ids) async for chunk in call]) == 40
    await stopping


@pytest.mark.parametrize("limit_s", [0, 0.001])
async def test_a_second_stop_shortens_the_wait(node: Node, limit_s: float) -> None:
    call = node.session(TENANT).call(stays, None)
    assert await anext(aiter(call)) == "started"
    stopping = asyncio.create_task(node.stop(drain_timeout_s=3600))
    await asyncio.sleep(0)
    await node.stop(drain_timeout_s=limit_s)
    await stopping
    await call.wait_closed()


@pytest.mark.parametrize(("limit_s", "told"), [(0.001, 1), (0.0, 0)])
async def test_what_did_not_finish_in_its_time_is_told(
    node: Node, caplog: pytest.LogCaptureFixture, limit_s: float, told: int
) -> None:
    """Who gave it no time knows that it was cut."""
    call = node.session(TENANT).call(stays, None)
    assert await anext(aiter(call)) == "started"
    await node.stop(drain_timeout_s=limit_s)
    words = "the time to finish is over: 1 calls and 0 programs are cancelled"
    assert caplog.messages.count(words) == told


async def test_a_second_stop_does_not_lengthen_the_wait(node: Node) -> None:
    call = node.session(TENANT).call(stays, None)
    assert await anext(aiter(call)) == "started"
    stopping = asyncio.create_task(node.stop(drain_timeout_s=0.001))
    await asyncio.sleep(0)
    await node.stop(drain_timeout_s=3600)
    await stopping


async def test_tenants_have_sessions_of_their_own(start_node: StartNode) -> None:
    a, b = TenantId("a"), TenantId("b")
    node = await start_node(fake_config(tenants=(TenantConfig(a), TenantConfig(b))))
    session = node.session(a, "s")
    assert node.session(b, "s") is not session
    assert node._parts.sessions.program_of(a, "s") == node._parts.sessions.program_of(a, session.id)
    assert node._parts.sessions.program_of(b, session.id) is None
