"""Ports: identity on everything, number ranges for several issuers of one program."""

from __future__ import annotations

import asyncio
import typing

import msgspec
import pytest

from quire.core import commands as c
from quire.core.actions import Reply
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.errors import ErrorRecord
from quire.core.events import CommandsIssued, Event, ProgramEnded, QueueClosed, QueueCreated, Quotas
from quire.core.ids import CommandId, ModelId, PageId, ProgramId, QueueId, ThreadId
from quire.node.ports import IssuerPort, IssuerSinks, move_command
from quire.node.quotas import tightest
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
    return EventPort(ProgramId(7), Quotas(), lambda: (), posts.post)


def test_a_port_stamps_its_program_and_ends_it_once(port: EventPort, posts: Posts) -> None:
    port.create_queue(QueueId(1), ModelId("m"), thread=ThreadId(2), depth=0, priority=3)
    port.issue(QueueId(1), [c.Synchronize(id=CommandId(1))])
    port.set_queue_priority(QueueId(1), 4)
    port.cancel(CommandId(1))
    port.reset_queue(QueueId(1))
    port.close_queue(QueueId(1))
    port.close("finished")
    port.close("again")
    assert {event.program for event in posts.events} == {7}  # type: ignore[union-attr]
    assert {event.time_s for event in posts.events} == {1.5}
    assert [event for event in posts.events if isinstance(event, ProgramEnded)] == [
        ProgramEnded(time_s=1.5, program=ProgramId(7), reason="finished")
    ]


COMMANDS: list[c.Command] = [
    c.AllocPages(id=CommandId(1), pages=[PageId(1)]),
    c.DeallocPages(id=CommandId(1), pages=[PageId(1)]),
    c.AllocEmbeds(id=CommandId(1), embeds=[2]),  # type: ignore[list-item]
    c.DeallocEmbeds(id=CommandId(1), embeds=[2]),  # type: ignore[list-item]
    c.ExportPages(id=CommandId(1), pages=[PageId(1)], name="n"),
    c.ReleaseExport(id=CommandId(1), name="n"),
    c.ListExports(id=CommandId(1), prefix="n"),
    c.ImportPages(id=CommandId(1), pages=[PageId(1)], name="n"),
    c.ImportPrefix(id=CommandId(1), pages=[PageId(1)], tokens=[1]),
    c.CopyPage(
        id=CommandId(1), source=PageId(1), source_offset=0, target=PageId(2), target_offset=0,
        num_slots=1,
    ),
    c.MaskPage(id=CommandId(1), page=PageId(1), visible=[True]),
    c.TruncatePage(id=CommandId(1), page=PageId(1), fill=1),
    c.EmbedText(id=CommandId(1), tokens=[1], positions=[1], embeds=[2], token_slots=[3]),  # type: ignore[list-item]
    c.EmbedImage(id=CommandId(1), image=b"i", positions=[1], embeds=[2]),  # type: ignore[list-item]
    c.Forward(id=CommandId(1), context=[PageId(1)], inputs=[2], output=[PageId(1)], outputs=[2]),  # type: ignore[list-item]
    c.GetNextDist(id=CommandId(1), embeds=[2]),  # type: ignore[list-item]
    c.Sample(id=CommandId(1), embeds=[2], sampler=SamplerSpec(), positions=[1]),  # type: ignore[list-item]
    c.Decode(
        id=CommandId(1), context=[PageId(1)], output=[PageId(1)], tokens=[1], position=1,
        sampler=SamplerSpec(), stop=StopSpec(1), history=[1],
    ),
    c.Synchronize(id=CommandId(1), after=(CommandId(1),)),
]  # fmt: skip

NOT_IDS = {
    "name", "ttl_s", "tokens", "source_offset", "target_offset", "num_slots", "visible", "fill",
    "positions", "mask", "top_k", "sampler", "history", "position", "stop", "grammar",
    "num_logprobs", "num_prompt_logprobs", "cache", "prefix", "image",
}  # fmt: skip


def test_every_command_of_the_interface_is_covered_here() -> None:
    assert {type(command) for command in COMMANDS} == set(typing.get_args(c.Command))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_moved_command_names_moved_ids_and_nothing_else_changes(command: c.Command) -> None:
    moved = move_command(command, BASE)
    for field in command.__struct_fields__:
        old, new = getattr(command, field), getattr(moved, field)
        if field in NOT_IDS or old is None:
            assert new == old, field
        elif isinstance(old, int):
            assert new == old + BASE, field
        else:
            assert list(new) == [number + BASE for number in old], field
    assert move_command(moved, -BASE) == command
    assert msgspec.msgpack.encode(moved)  # still within msgpack's integers


def test_closing_an_issuer_closes_its_open_queues_alone(port: EventPort, posts: Posts) -> None:
    first, second = IssuerPort(port, 0, ThreadId(5)), IssuerPort(port, 1, ThreadId(6))
    for issuer in (first, second):
        for number in (1, 2):
            issuer.create_queue(
                QueueId(number), ModelId("m"), thread=ThreadId(0), depth=0, priority=0
            )
    second.close_queue(QueueId(1))
    posts.events.clear()
    second.close()
    second.close()
    closed = QueueClosed(time_s=1.5, program=ProgramId(7), queue=QueueId((1 << 32) + 2))
    assert posts.events == [closed]


def test_a_calls_queues_serve_its_thread(port: EventPort, posts: Posts) -> None:
    issuer = IssuerPort(port, 2, ThreadId(9))
    issuer.create_queue(QueueId(1), ModelId("m"), thread=ThreadId(0), depth=0, priority=0)
    issuer.issue(QueueId(1), [c.Synchronize(id=CommandId(4))])
    created, issued = posts.events
    assert isinstance(created, QueueCreated)
    assert isinstance(issued, CommandsIssued)
    assert created.thread == 9
    assert created.queue == issued.queue == (2 << 32) + 1
    assert issued.commands[0].id == (2 << 32) + 4


class Sink:
    def __init__(self) -> None:
        self.got: list[object] = []

    def on_reply(self, command: CommandId, reply: Reply, last: bool) -> None:
        self.got.append((command, reply))

    def on_failure(self, command: CommandId, error: ErrorRecord) -> None:
        self.got.append((command, error))

    def on_terminated(self, error: ErrorRecord) -> None:
        self.got.append(error)


async def test_replies_find_their_issuer_under_its_own_numbers() -> None:
    ends: list[ErrorRecord] = []
    sinks, a, b = IssuerSinks(ends.append), Sink(), Sink()
    loop = asyncio.get_running_loop()
    sinks.add(0, a, loop)
    sinks.add(3, b, loop)
    page = c.ImportedPage(PageId(BASE + 1), 1, [0], [True])
    sinks.on_reply(CommandId(BASE + 5), c.Imported([page], 1, [5]), True)
    error = ErrorRecord("x", "y")
    sinks.on_failure(CommandId(2), error)
    sinks.remove(0)
    sinks.on_failure(CommandId(3), error)  # of an issuer that has gone
    sinks.on_terminated(error)
    assert a.got == [(2, error)]
    assert b.got == [(5, c.Imported([c.ImportedPage(PageId(1), 1, [0], [True])], 1, [5])), error]
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
