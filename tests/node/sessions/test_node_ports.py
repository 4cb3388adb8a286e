"""Ports: identity on everything, number ranges for several issuers of one program."""

from __future__ import annotations

import asyncio
import typing

import msgspec
import pytest

from quire.core import commands as c
from quire.core.actions import ReplyValue
from quire.core.calls import (
    Cancel,
    CloseQueue,
    CreateQueue,
    Issue,
    QueueCall,
    ResetQueue,
    SetQueueDepth,
    SetQueuePriority,
)
from quire.core.errors import ErrorRecord
from quire.core.events import Called, Event, ProgramEnded
from quire.core.ids import CommandId, ModelId, ProgramId, QueueId, ThreadId
from quire.core.quotas import Quotas
from quire.core.system_clock import SystemClock
from quire.node.quotas import tightest
from quire.node.sessions.ports import IssuerPort, IssuerSinks
from quire.programs.runtime import EventPort

BASE = 3 << 32


class Posts:
    """A control thread that only notes what is posted."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def post(self, event_at: typing.Callable[[float], Event]) -> None:
        self.events.append(event_at(1.5))


@pytest.fixture
def posts() -> Posts:
    return Posts()


@pytest.fixture
def port(posts: Posts) -> EventPort:
    return EventPort(ProgramId(7), Quotas(), lambda: (), posts.post, clock=SystemClock())


def test_a_port_stamps_its_program_and_ends_it_once(port: EventPort, posts: Posts) -> None:
    calls = [
        CreateQueue(QueueId(1), ModelId("m"), ThreadId(2), depth=0, priority=3),
        Issue(QueueId(1), [c.Synchronize(id=CommandId(1))]),
        SetQueuePriority(QueueId(1), 4),
        SetQueueDepth(QueueId(1), 3, invocation=2, remaining_us=5),
        Cancel(CommandId(1)),
        ResetQueue(QueueId(1)),
        CloseQueue(QueueId(1)),
    ]
    assert {type(call) for call in calls} == set(typing.get_args(QueueCall))
    for call in calls:
        port.post(call)
    port.close("finished")
    port.close("again")
    assert [event.call for event in posts.events if isinstance(event, Called)] == calls
    assert {event.program for event in posts.events} == {7}  # type: ignore[union-attr]
    assert {event.time_s for event in posts.events} == {1.5}
    assert [event for event in posts.events if isinstance(event, ProgramEnded)] == [
        ProgramEnded(time_s=1.5, program=ProgramId(7), reason="finished")
    ]


def test_closing_an_issuer_closes_its_open_queues_alone(port: EventPort, posts: Posts) -> None:
    first, second = IssuerPort(port, 0, ThreadId(5)), IssuerPort(port, 1, ThreadId(6))
    for issuer in (first, second):
        for number in (0, 1):
            issuer.post(CreateQueue(QueueId(issuer.first_number + number), ModelId("m")))
    second.post(CloseQueue(QueueId(second.first_number)))
    posts.events.clear()
    second.close()
    second.close()
    closed = Called(time_s=1.5, program=ProgramId(7), call=CloseQueue(QueueId((1 << 32) + 2)))
    assert posts.events == [closed]


def test_a_calls_queues_serve_its_thread(port: EventPort, posts: Posts) -> None:
    issuer = IssuerPort(port, 2, ThreadId(9), ThreadId(4))
    issuer.post(CreateQueue(QueueId(1), ModelId("m"), depth=2, priority=3))
    (created,) = posts.events
    assert isinstance(created, Called)
    thread, parent = ThreadId(9), ThreadId(4)
    assert created.call == CreateQueue(QueueId(1), ModelId("m"), thread, 2, 3, parent)


def test_issuers_number_what_they_make_in_ranges_of_their_own(
    port: EventPort, posts: Posts
) -> None:
    first = [IssuerPort(port, index, ThreadId(0)).first_number for index in (0, 1, (1 << 31) - 1)]
    assert first[:2] == [1, (1 << 32) + 1]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(first[2])) == first[2], "still an integer"


class Sink:
    def __init__(self) -> None:
        self.got: list[object] = []

    def on_reply(self, command: CommandId, reply: ReplyValue, last: bool) -> None:
        self.got.append((command, reply))

    def on_failure(self, command: CommandId, error: ErrorRecord) -> None:
        self.got.append((command, error))

    def on_terminated(self, error: ErrorRecord) -> None:
        self.got.append(error)


async def test_replies_find_their_issuer_by_its_numbers() -> None:
    ends: list[ErrorRecord] = []
    sinks, a, b = IssuerSinks(ends.append), Sink(), Sink()
    loop = asyncio.get_running_loop()
    sinks.add(0, a, loop)
    sinks.add(3, b, loop)
    sinks.on_reply(CommandId(BASE + 5), None, True)
    error = ErrorRecord("x", "y")
    sinks.on_failure(CommandId(2), error)
    sinks.remove(0)
    sinks.on_failure(CommandId(3), error)  # of an issuer that has gone
    sinks.on_terminated(error)
    assert a.got == [(2, error)]
    assert b.got == [(BASE + 5, None), error]
    assert ends == [error]
    late = Sink()
    sinks.add(4, late, loop)
    await asyncio.sleep(0)
    assert late.got == [error]


def test_the_tightest_quota_of_each_kind_holds() -> None:
    tenant = Quotas(max_pages=10, max_pending_commands=None)
    program = Quotas(max_pages=20, max_embeds=3, max_dist_top_k=64, max_pending_commands=None)
    assert tightest(tenant, program, None) == Quotas(
        max_pages=10, max_embeds=3, max_dist_top_k=64, max_pending_commands=None
    )
    assert tightest(Quotas(), Quotas(max_pending_commands=5)).max_pending_commands == 5
    assert tightest(Quotas(), Quotas(max_children=None)).max_children == 64, "none raises it"
    free = Quotas(max_children=None, max_queues=None, max_exports=None)
    assert tightest(free, free) == free, "unbounded where all are"
