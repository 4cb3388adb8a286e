"""While KV contents are on their way: nobody reads them, nobody is refused, and whatever happens to
their program meanwhile, both ends come free."""

from __future__ import annotations

from control_world import ENGINE, World, alone

from quire.control.memory.content import Content
from quire.control.memory.transfers import Location, Tier, TransferTable
from quire.core.batch import SwapIn, SwapOut
from quire.core.calls import Cancel
from quire.core.events import ProgramEnded
from quire.core.ids import ProgramId
from quire.testing import ControlHarness, FakeEngine
from quire.testing.harness import CommandOutcome

PROMPT = list(range(50, 62))


class LateWorld(World):
    """Its transfers end when the test says so, or when nothing else moves."""

    def __init__(self, **pool: int) -> None:
        super().__init__(**pool)
        self.harness = ControlHarness(
            self.controller, {ENGINE: FakeEngine(self.engine.info.pool)}, late_transfers=True
        )


def leaving() -> tuple[LateWorld, CommandOutcome]:
    """Program 1, idle, fills the pool and has to move out for program 2, which waits."""
    world = LateWorld(num_blocks=4, num_host_blocks=16)
    for program in (1, 2):
        world.program(program)
    pages = range(4)
    world.do(1, world.alloc(pages), world.decode(pages, [1, *PROMPT], 3))
    wanted = world.issue(2, world.alloc(pages), world.decode(pages, [2, *PROMPT], 3))[1]
    while world.harness.step_engine(ENGINE):
        pass
    assert world.pool.num_transfers > 0
    assert wanted.status == "pending"
    return world, wanted


def assert_empty(world: World) -> None:
    for program in (1, 2):
        world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(program)))
    world.run()
    pool = world.pool
    assert (pool.num_transfers, pool.num_held) == (0, 0)
    assert pool.num_host_free + pool.num_host_cached == pool.num_host_blocks


def test_who_waits_for_blocks_goes_on_at_the_end_and_not_before() -> None:
    world, wanted = leaving()
    swaps = [op for d in world.harness.dispatched for op in d.batch.operations if _is_swap(op)]
    assert [type(swap) for swap in swaps] == [SwapOut], "one operation for all that leave"
    num_sent = len(world.harness.dispatched)
    world.program(3)
    assert len(world.harness.dispatched) == num_sent, "an event alone sends nothing again"
    assert world.harness.step_transfers(ENGINE)
    world.run()
    assert wanted.tokens == alone([2, *PROMPT], 3)
    assert_empty(world)


def _is_swap(operation: object) -> bool:
    return isinstance(operation, SwapOut | SwapIn)


def test_what_is_freed_under_way_is_free_at_the_end() -> None:
    world, wanted = leaving()
    world.issue(1, world.dealloc(range(4)))
    assert world.pool.num_transfers > 0
    world.run()
    assert wanted.tokens == alone([2, *PROMPT], 3)
    assert_empty(world)


def test_a_command_cancelled_while_it_waits_leaves_its_promise_to_others() -> None:
    world, wanted = leaving()
    world.harness.call(ProgramId(2), Cancel(wanted.command.id))
    world.program(3)
    pages = range(4)
    other = world.do(3, world.alloc(pages), world.decode(pages, [3, *PROMPT], 3))[1]
    assert wanted.status == "cancelled"
    assert other.tokens == alone([3, *PROMPT], 3)
    world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(3)))
    assert_empty(world)


def test_an_engine_lost_under_way_ends_its_transfers() -> None:
    world, wanted = leaving()
    world.harness.lose_engine(ENGINE)
    assert world.pool.num_transfers == 0
    world.harness.start_engine(ENGINE, FakeEngine(world.engine.info.pool))
    world.run()
    assert wanted.tokens == alone([2, *PROMPT], 3)
    assert_empty(world)


def test_a_program_that_ends_under_way_keeps_nothing() -> None:
    world, wanted = leaving()
    world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(1)))
    world.run()
    assert wanted.tokens == alone([2, *PROMPT], 3)
    assert_empty(world)


def test_blocks_that_leave_a_tier_are_counted_until_their_transfers_end() -> None:
    def at(tier: Tier, block: int) -> Location:
        return Location(ENGINE, tier, block)

    table = TransferTable()
    out, *to_disk = (
        table.begin(Content(None, canonical=True), at(source, block), at(target, block))
        for block, (source, target) in enumerate(
            [(Tier.DEVICE, Tier.HOST), (Tier.HOST, Tier.DISK), (Tier.HOST, Tier.DISK)]
        )
    )
    assert (table.num_leaving, table.num_leaving_host) == (1, 2)
    table.end(to_disk[0].id)
    assert (table.num_leaving, table.num_leaving_host) == (1, 1)
    table.end(out.id)
    table.end(to_disk[1].id)
    assert (table.num_leaving, table.num_leaving_host) == (0, 0)
