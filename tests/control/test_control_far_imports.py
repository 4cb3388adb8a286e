"""An import of an export that lives on another engine brings its K and V from there."""

from __future__ import annotations

from typing import Any

import pytest
from control_world import ENGINE, World, alone

from quire.core import commands as c
from quire.core.batch import OpenReceive, SendSlots, SwapIn
from quire.core.calls import (
    SPARE_PRIORITY,
    Cancel,
    CloseQueue,
    ControlCall,
    CreateQueue,
    Issue,
    ResetQueue,
    SetQueueDepth,
    SetQueuePriority,
)
from quire.core.decoding import StopSpec
from quire.core.events import Called, ProgramEnded
from quire.core.ids import CommandId, EngineId, ModelId, PageId, ProgramId, QueueId
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool
from quire.testing.fake_engine.network import FakeNetwork

SIZE = 4
PROMPT = list(range(50, 61))
"""Two full pages and three tokens more."""
OTHER = EngineId("other")
HERE, THERE = 1, 2
"""Queues of program 1: on the engine of the export, and on the other one."""


class Far(World):
    """Two engines of one node, each for a model of its own; program 1 has a queue on each."""

    def __init__(
        self, seed: int | None = None, other_size: int = SIZE, *, meets: bool = True, **other: Any
    ) -> None:
        """``other``: fields of the other engine. ``meets``: they have data planes."""
        self.network = network = FakeNetwork(seed) if meets else None
        first = FakeEngine(fake_pool(page_size=SIZE, num_blocks=16), network=network)
        super().__init__(engine=first)
        pool = fake_pool(page_size=other_size, num_blocks=16)
        self.second = FakeEngine(pool, network=network, model="other", **other)
        self.harness.start_engine(OTHER, self.second)
        self.program()
        self.queue(1, THERE, model=ModelId("other"))

    def export(self, tokens: list[int] = PROMPT, *, first_page: int = 0, name: str = "x") -> None:
        """Compute ``tokens`` here and export their pages."""
        pages = list(range(first_page, first_page + -(-len(tokens) // SIZE)))
        prefill = self.decode(pages, tokens, stop=StopSpec(max_tokens=0))
        export = c.ExportPages(id=self.id(), pages=pages, name=name, ttl_s=600.0)
        outcomes = self.do(1, self.alloc(pages), prefill, export)
        assert [one.status for one in outcomes] == ["done"] * 3, outcomes

    def bring(self, pages: Any = range(100, 108), **fields: Any) -> Any:
        """Import it on the other engine."""
        (outcome,) = self.do(
            1, c.ImportPages(id=self.id(), name="x", pages=list(pages), **fields), queue=THERE
        )
        return outcome

    def go_on(self, pages: list[int], fill: int, tokens: list[int], num: int = 5) -> list[int]:
        """Tokens that follow on the other engine."""
        more = list(range(300, 304))
        decode = self.decode(more, tokens, num, position=fill, context=[*pages, *more])
        told = self.do(1, self.alloc(more), decode, queue=THERE)[1].tokens
        assert len(told) == num
        return told

    def operations(self, engine: EngineId, kind: type) -> list[Any]:
        sent = [one for one in self.harness.dispatched if one.engine == engine]
        return [op for one in sent for op in one.batch.operations if type(op) is kind]


def test_what_one_engine_has_exported_another_one_imports() -> None:
    world = Far()
    world.export()
    imported = world.bring().reply
    assert [page.fill for page in imported.pages] == [4, 4, 3]
    assert [page.positions for page in imported.pages] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]
    ]  # fmt: skip
    assert world.go_on([100, 101, 102], 11, [7]) == alone([*PROMPT, 7], 5, page_size=SIZE)
    (received,), (sent,) = world.operations(OTHER, OpenReceive), world.operations(ENGINE, SendSlots)
    assert len(received.slots) == len(sent.slots) == 11
    rows = [one.batch.forward for one in world.harness.dispatched if one.engine == OTHER]
    assert sum(len(row.tokens) for row in rows if row is not None) == 1, "the rest is not computed"


def nothing_is_left(world: Far) -> None:
    statistics = world.controller.statistics()
    assert statistics.num_leases == statistics.num_pending_commands == 0
    assert statistics.num_queues == 2, "control's own queues are closed"
    assert [engine.pool.num_held for engine in statistics.engines][1] == 0


def test_what_the_other_engine_has_is_not_sent() -> None:
    world = Far()
    world.export()
    prompt = world.decode([90, 91, 92], [*PROMPT[:8], 1], stop=StopSpec(max_tokens=0))
    world.do(1, world.alloc([90, 91, 92]), prompt, queue=THERE)
    world.bring()
    (sent,) = world.operations(ENGINE, SendSlots)
    assert len(sent.slots) == 3, "its two full pages are there"
    assert world.go_on([100, 101, 102], 11, [7]) == alone([*PROMPT, 7], 5, page_size=SIZE)


def test_all_of_it_may_be_there_already() -> None:
    world = Far()
    world.export(PROMPT[:8])
    world.bring()
    world.do(1, world.dealloc([100, 101]), queue=THERE)
    assert world.bring([110, 111]).status == "done"
    assert len(world.operations(ENGINE, SendSlots)) == 1
    assert world.go_on([110, 111], 8, [7]) == alone([*PROMPT[:8], 7], 5, page_size=SIZE)


def test_the_commands_of_an_import_take_no_id_that_the_program_may_use() -> None:
    world = Far()
    world.num_commands = 100
    world.export()
    assert world.bring().status == "done"
    for number in range(1, 9):
        (outcome,) = world.do(1, c.AllocPages(id=CommandId(number), pages=[200 + number]))
        assert outcome.status == "done", outcome


def test_full_pages_that_came_are_found_by_other_prompts() -> None:
    world = Far()
    world.export()
    world.bring()
    (found,) = world.do(
        1, c.ImportPrefix(id=world.id(), tokens=PROMPT, pages=[200, 201]), queue=THERE
    )
    assert found.reply.num_tokens == 8


def masked(world: Far) -> list[int]:
    """Export pages of which slots are hidden, at positions with gaps; what follows them there."""
    prefill = world.decode([0, 1], PROMPT[:7], stop=StopSpec(max_tokens=0))
    later = world.decode([2], [9, 8], position=20, stop=StopSpec(max_tokens=0), context=[0, 1, 2])
    hide = c.MaskPage(id=world.id(), page=0, visible=[True, False, True, False])
    export = c.ExportPages(id=world.id(), pages=[0, 1, 3, 2], name="x", ttl_s=600.0)
    outcomes = world.do(1, world.alloc(range(5)), prefill, hide, later, export)
    assert [one.status for one in outcomes] == ["done"] * 5, outcomes
    decode = world.decode([4], [7], 2, position=30, context=[0, 1, 2, 4])
    told = world.do(1, decode)[0].tokens
    assert len(told) == 2
    return told


def test_opaque_pages_bring_positions_fill_and_mask() -> None:
    world = Far()
    told = masked(world)
    imported = world.bring().reply
    assert [page.fill for page in imported.pages] == [4, 3, 0, 2]
    assert imported.pages[0].visible == [True, False, True, False]
    assert imported.pages[3].positions == [20, 21]
    assert world.go_on([100, 101, 103], 30, [7], 2) == told


def push_out(world: Far) -> None:
    """Fill the device with the pages of another program, which then ends."""
    world.program(2)
    decode = world.decode(range(16), [7, *PROMPT], 50)
    assert world.do(2, world.alloc(range(16)), decode)[1].status == "done"
    world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(2)))


@pytest.mark.parametrize("other_size", [SIZE, 2, 8])
def test_opaque_pages_on_the_host_go_from_there(other_size: int) -> None:
    world = Far(other_size=other_size)
    told = masked(world)
    push_out(world)
    imported = world.bring(range(100, 120)).reply
    shown = [shown for page in imported.pages for shown in page.visible[: page.fill]]
    positions = [position for page in imported.pages for position in page.positions]
    assert shown == [True, False, True, False, True, True, True, True, True]
    assert positions == [*range(7), 20, 21]
    pages = [page.page for page in imported.pages if page.fill]
    assert world.go_on(pages, 30, [7], 2) == told
    (sent,) = world.operations(ENGINE, SendSlots)
    assert (len(sent.host_slots), set(sent.slots.tolist())) == (9, {-1})
    assert not world.operations(ENGINE, SwapIn)


def test_pages_of_another_size_have_the_same_slots() -> None:
    world = Far(other_size=8)
    told = masked(world)
    imported = world.bring().reply
    assert [page.fill for page in imported.pages] == [8, 1]
    assert imported.pages[0].visible == [True, False, True, False, True, True, True, True]
    assert imported.pages[1].positions == [21]
    assert world.go_on([100, 101], 30, [7], 2) == told


@pytest.mark.parametrize("size", [2, 8])
def test_text_in_pages_of_another_size_is_still_known(size: int) -> None:
    world = Far(other_size=size)
    world.export()
    imported = world.bring().reply
    pages = [page.page for page in imported.pages]
    assert sum(page.fill for page in imported.pages) == 11
    assert world.go_on(pages, 11, [7]) == alone([*PROMPT, 7], 5, page_size=SIZE)
    (found,) = world.do(
        1, c.ImportPrefix(id=world.id(), tokens=PROMPT, pages=list(range(200, 206))), queue=THERE
    )
    assert found.reply.num_tokens == 11 // size * size


def test_empty_pages_come_without_a_transfer() -> None:
    world = Far()
    export = c.ExportPages(id=world.id(), pages=[0], name="x", ttl_s=None)
    world.do(1, world.alloc([0]), export)
    assert [page.fill for page in world.bring().reply.pages] == [0]
    assert not world.operations(OTHER, OpenReceive)


def test_who_computes_other_k_and_v_is_told() -> None:
    world = Far(content="fake-2")
    world.export()
    error = world.bring().error
    assert error is not None
    assert error.code == "invalid_argument"
    assert "'fake-1'" in error.message
    assert "'fake-2'" in error.message
    nothing_is_left(world)


def test_engines_without_data_planes_are_named() -> None:
    world = Far(meets=False)
    world.export()
    assert "fake and other exchanges no K and V" in str(world.bring().error)


def test_too_few_ids_are_refused_before_anything_is_sent() -> None:
    world = Far()
    world.export()
    error = world.bring([100, 101]).error
    assert error is not None
    assert error.details == {"num_pages": 3}
    assert not world.operations(OTHER, OpenReceive)
    nothing_is_left(world)


def test_no_room_is_said_with_the_figures() -> None:
    world = Far()
    world.export(list(range(36)))
    error = world.bring(range(100, 120)).error
    assert error is not None
    assert error.code == "never_fits"
    assert "8 may wait" in error.message
    nothing_is_left(world)


def test_the_export_may_go_while_it_is_brought() -> None:
    world = Far()
    world.export()
    world.issue(1, c.ImportPages(id=world.id(), name="x", pages=[100, 101, 102]), queue=THERE)
    assert world.harness.step_engine(OTHER), "the lease is open"
    world.issue(1, c.ReleaseExport(id=world.id(), name="x"), world.dealloc([0, 1, 2]))
    world.run()
    assert world.controller.statistics().num_exports == 0
    assert world.go_on([100, 101, 102], 11, [7]) == alone([*PROMPT, 7], 5, page_size=SIZE)


@pytest.mark.parametrize("num_steps", range(4))
@pytest.mark.parametrize("ends", ["cancel", "program", "source lost", "target lost"])
def test_an_import_that_ends_on_its_way_leaves_nothing(ends: str, num_steps: int) -> None:
    """At each point between two steps of the engines."""
    world = Far()
    world.export()
    command = c.ImportPages(id=world.id(), name="x", pages=[100, 101, 102])
    (outcome,) = world.issue(1, command, queue=THERE)
    for step in range(num_steps):
        world.harness.step_engine([OTHER, ENGINE][step % 2])
    if ends == "cancel":
        world.harness.call(ProgramId(1), Cancel(CommandId(command.id)))
    elif ends == "program":
        world.harness.post(
            ProgramEnded(time_s=world.harness.now_s, program=ProgramId(1), reason="test")
        )
    else:
        lost = ENGINE if ends == "source lost" else OTHER
        world.harness.lose_engine(lost)
        pool = fake_pool(page_size=SIZE, num_blocks=16)
        world.harness.start_engine(lost, FakeEngine(pool, network=world.network))
    world.run()
    statistics = world.controller.statistics()
    assert outcome.status != "pending"
    assert statistics.num_leases == 0
    assert statistics.num_queues == (0 if ends == "program" else 2)
    if outcome.status != "done":
        assert statistics.engines[1].pool.num_held == 0


@pytest.mark.parametrize("seed", range(5))
def test_pieces_may_come_in_any_order(seed: int) -> None:
    world = Far(seed)
    told = masked(world)
    world.bring()
    assert world.go_on([100, 101, 103], 30, [7], 2) == told


@pytest.mark.parametrize(
    "call",
    [
        CloseQueue(QueueId(-1)),
        CloseQueue(QueueId(-2)),
        ResetQueue(QueueId(-1)),
        ResetQueue(QueueId(-2)),
        SetQueuePriority(QueueId(-1), SPARE_PRIORITY),
        SetQueueDepth(QueueId(-1), 7),
        CreateQueue(QueueId(-1), ModelId("other")),
        CreateQueue(QueueId(-3), ModelId("other")),
        Cancel(CommandId(-1)),
        Cancel(CommandId(-2)),
    ],
)
@pytest.mark.parametrize("num_steps", range(4))
def test_a_program_cannot_name_the_queues_and_commands_of_control(
    call: ControlCall, num_steps: int
) -> None:
    world = Far()
    world.export()
    (imported,) = world.issue(
        1, c.ImportPages(id=world.id(), name="x", pages=list(range(100, 108))), queue=THERE
    )
    for _ in range(num_steps):
        world.harness.step()
    held = {queue: vars_of(world, queue) for queue in own_queues(world)}
    world.harness.call(ProgramId(1), call)
    assert {queue: vars_of(world, queue) for queue in own_queues(world)} == held
    world.run()
    assert imported.status == "done", imported.error
    assert world.controller.statistics().num_queues == 2, "control's own queues are closed"


def own_queues(world: Far) -> list[QueueId]:
    program = world.controller._table.get(ProgramId(1))
    assert program is not None
    return [queue for queue in program.queues if queue < 0]


def vars_of(world: Far, number: QueueId) -> tuple[int, Any]:
    program = world.controller._table.get(ProgramId(1))
    assert program is not None
    return program.queues[number].priority, program.queues[number].place


def test_what_a_program_names_below_zero_is_refused() -> None:
    """Of its import's pages, queues and commands it could otherwise take some away."""
    world = Far()
    world.export()
    world.issue(1, c.ImportPages(id=world.id(), name="x", pages=list(range(100, 108))), queue=THERE)
    world.queue(1, -1)
    world.queue(1, -7)
    refused = [
        *world.issue(1, world.alloc([1000]), queue=-1),
        *world.issue(1, world.alloc([1001]), queue=-7),
        *world.issue(1, c.AllocPages(id=CommandId(-5), pages=[PageId(1002)])),
        *world.issue(1, world.alloc([-1])),
    ]
    codes = [one.error.code for one in refused if one.error is not None]
    assert codes == ["invalid_argument"] * 4
    assert all("below 0" in one.error.message for one in refused if one.error is not None)
    world.harness.call(ProgramId(1), ResetQueue(QueueId(HERE)))
    (freed,) = world.issue(1, world.dealloc([-1]))
    assert freed.error is not None
    assert freed.error.code == "unknown_handle"
    world.run()
    assert world.go_on([100, 101, 102], 11, [7]) == alone([*PROMPT, 7], 5, page_size=SIZE)


def test_an_import_that_ends_with_its_program_in_the_same_moment() -> None:
    world = Far()
    world.export()
    world.program(2, queues=0)
    world.queue(2, THERE, model=ModelId("other"))
    wanted = c.ImportPages(id=world.id(), name="x", pages=list(range(100, 108)))
    issued = Called(
        time_s=world.harness.now_s,
        program=ProgramId(2),
        call=Issue(QueueId(THERE), [wanted]),
        more=True,
    )
    world.harness.post(issued)
    world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(2)))
    world.run()
    assert not world.operations(OTHER, OpenReceive)
    nothing_is_left(world)
