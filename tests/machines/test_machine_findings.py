"""What the state machines have found, each as small as it gets."""

from __future__ import annotations

import pytest
from machines_programs import SLOTS
from machines_world import ENGINE, TrackedQueue, World
from test_machine_control import EngineLossMachine

from benchmarks.pie.dispatch_policies import Eager
from quire.core import commands as c
from quire.core.batch import CopySlots
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.ids import EmbedId, PageId, TokenSlotId
from quire.core.scheduler_config import PausingConfig
from quire.testing import CommandOutcome, FakeEngine


def decode(
    world: World,
    queue: TrackedQueue,
    output: list[PageId],
    *,
    context: list[PageId] | None = None,
    after: CommandOutcome | None = None,
    position: int = 0,
    max_tokens: int = 4,
) -> CommandOutcome:
    (outcome,) = world.issue(
        queue,
        c.Decode(
            id=world.command_id(queue),
            after=() if after is None else (after.command.id,),
            context=context or [],
            output=output,
            tokens=list(b"abcd"),
            position=position,
            sampler=SamplerSpec(),
            stop=StopSpec(max_tokens=max_tokens),
        ),
    )
    return outcome


@pytest.fixture
def world() -> World:
    return World()


def test_closing_a_queue_in_flight_keeps_the_books(world: World) -> None:
    queue = world.start_program().queues[0]
    outcome = decode(world, queue, world.alloc_pages(queue, 4))
    assert world.harness.num_in_flight(ENGINE)
    world.close(queue)
    world.finish()
    assert outcome.status == "cancelled"


def test_token_slots_without_tokens(world: World) -> None:
    """``tokens`` says nothing where ``token_slots`` does: it may be left empty."""
    queue = world.start_program().queues[0]
    inputs = world.embed(queue, list(b"ab"), 0)
    last, slot = world.output_embed(queue), TokenSlotId(1)
    world.issue(
        queue,
        c.Forward(id=world.command_id(queue), context=[], inputs=inputs, output=[], outputs=[last]),
        c.Sample(
            id=world.command_id(queue),
            embeds=[last],
            sampler=SamplerSpec(),
            positions=[2],
            token_slots=[slot],
        ),
    )
    world.embed(queue, [], 2, token_slots=[slot])
    world.finish()


@pytest.mark.parametrize("end", ["cancel", "reset", "close"])
def test_a_cancelled_dependency_is_never_done(world: World, end: str) -> None:
    actor = world.start_program()
    queue, fork = actor.queues[0], world.create_queue(actor)
    pages = world.alloc_pages(queue, 4)
    first = decode(world, queue, pages)
    fork.parents.append(queue)
    for page in pages[:2]:
        fork.reference.pages[page] = queue.reference.pages[page]
    second = decode(
        world, fork, world.alloc_pages(fork, 4), context=pages[:2], after=first, position=4
    )
    if end == "cancel":
        world.cancel(queue, first.command.id)
    elif end == "reset":
        world.reset(queue)
    else:
        world.close(queue)
    world.finish()
    assert (first.status, second.status) == ("cancelled", "failed")
    assert second.error is not None
    assert second.error.code == "queue_poisoned"


def test_copies_of_one_message_have_one_order(world: World) -> None:
    """A copy over a slot that copy-on-write has just filled is an operation behind it."""
    queue = world.start_program().queues[0]
    first, second = world.alloc_pages(queue, 2)
    decode(world, queue, [first, second], max_tokens=0)
    world.issue(
        queue,
        c.ExportPages(id=world.command_id(queue), pages=[first], name="keeps the block shared"),
    )
    world.issue(
        queue,
        c.CopyPage(
            id=world.command_id(queue),
            source=second,
            source_offset=0,
            target=first,
            target_offset=1,
            num_slots=1,
        ),
    )
    decode(world, queue, world.alloc_pages(queue, 4), context=[first], position=9)
    world.harness.run_until_idle(100)
    copies = [
        operation
        for dispatch in world.harness.dispatched
        for operation in dispatch.batch.operations
        if isinstance(operation, CopySlots)
    ]
    assert copies
    world.finish()


@pytest.mark.parametrize("num_steps", range(6))
def test_losing_the_engine_leaves_nothing_waiting(world: World, num_steps: int) -> None:
    actor = world.start_program()
    queue, fork = actor.queues[0], world.create_queue(actor)
    pages = world.alloc_pages(queue, 4)
    first = decode(world, queue, pages)
    fork.parents.append(queue)
    for page in pages[:2]:
        fork.reference.pages[page] = queue.reference.pages[page]
    decode(world, fork, world.alloc_pages(fork, 4), context=pages[:2], after=first, position=4)
    for _ in range(num_steps):
        world.harness.step()
    world.disturb(queue, fork)
    world.harness.lose_engine(ENGINE)
    world.harness.start_engine(ENGINE, FakeEngine(world.pool))
    world.finish()


def test_an_unwritten_embed_is_refused(world: World) -> None:
    queue = world.start_program().queues[0]
    embed = EmbedId(77)
    alloc = c.AllocEmbeds(id=world.command_id(queue), embeds=[embed])
    dist = c.GetNextDist(id=world.command_id(queue), embeds=[embed])
    _, outcome = world.harness.issue(queue.actor.program, queue.id, alloc, dist)
    world.run_until_ended(outcome)
    assert outcome.status == "failed"


@pytest.mark.parametrize("num_programs", [2, 3, 5])
def test_opaque_pages_in_full_tiers_do_not_wedge(num_programs: int) -> None:
    """Nothing can be recomputed or swapped: somebody is refused (retriable), the oldest ends."""
    world = World(page_size=1, num_blocks=26, num_host_blocks=3)
    world.tolerated = frozenset({"pool_exhausted"})
    outcomes = []
    for _ in range(num_programs):
        queue = world.start_program().queues[0]
        pages = world.alloc_pages(queue, 20)
        # From position 5 on nothing is canonical.
        outcomes.append(decode(world, queue, pages, position=5, max_tokens=16))
    world.harness.run_until_idle(4000)
    assert not world.harness.pending()
    assert outcomes[0].status == "done"
    for outcome in outcomes[1:]:
        assert outcome.status == "done" or (outcome.error and outcome.error.retriable)
    world.finish()


@pytest.mark.parametrize("num_held", [22, 25, 26])
@pytest.mark.parametrize("grow", [True, False])
def test_idle_opaque_pages_in_full_tiers_do_not_wedge(num_held: int, grow: bool) -> None:
    """An idle program holds everything and nothing can move: the one that runs is refused."""
    world = World(page_size=1, num_blocks=26, num_host_blocks=3)
    world.tolerated = frozenset({"pool_exhausted"})
    idle = world.start_program().queues[0]
    pages = world.alloc_pages(idle, num_held)
    held = decode(world, idle, pages, position=5, max_tokens=num_held - 3)
    world.run_until_ended(held)
    assert held.status == "done"
    queue = world.start_program().queues[0]
    outcome = decode(world, queue, world.alloc_pages(queue, 20), max_tokens=16 if grow else 1)
    world.harness.run_until_idle(4000)
    assert outcome.status != "pending"
    assert outcome.error is None or outcome.error.retriable
    world.finish()


def fill(world: World, queue: TrackedQueue, text: bytes, position: int = 0) -> list[PageId]:
    """Pages full of ``text``; from another position than 0 on they are opaque."""
    pages = world.alloc_pages(queue, len(text) // world.pool.page_size)
    (outcome,) = world.issue(
        queue,
        c.Decode(
            id=world.command_id(queue),
            context=[],
            output=pages,
            tokens=list(text),
            position=position,
            sampler=SamplerSpec(),
            stop=StopSpec(max_tokens=0),
        ),
    )
    world.run_until_ended(outcome)
    assert outcome.status == "done"
    return pages


def tiny_world(num_blocks: int, max_batch_tokens: int = 64) -> World:
    """Without host memory: what does not fit is dropped, and computed again where it can be."""
    world = World(
        page_size=4, num_blocks=num_blocks, num_host_blocks=0, max_batch_tokens=max_batch_tokens
    )
    world.tolerated = frozenset({"pool_exhausted"})
    return world


def test_lost_pages_of_one_command_do_not_take_turns() -> None:
    """It names two pages that cannot both be there: computing either again drops neither."""
    world = tiny_world(6)
    queue = world.start_program().queues[0]
    first, second = fill(world, queue, b"abcd"), fill(world, queue, b"efgh")
    fill(world, queue, bytes(range(20)), position=5)
    outcome = decode(
        world, queue, world.alloc_pages(queue, 1), context=first + second, position=8, max_tokens=0
    )
    world.run_until_ended(outcome)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.retriable) == ("pool_exhausted", True)
    world.finish()


def test_a_deep_chain_may_drop_shallow_pages_of_its_command() -> None:
    """Its four pages and the two others never fit at once, but those that are named do."""
    world = tiny_world(6)
    queue = world.start_program().queues[0]
    chain = fill(world, queue, b"abcdefghijklmnop")
    others = [*fill(world, queue, b"qrst"), *fill(world, queue, b"uvwx")]
    opaque = fill(world, queue, bytes(range(24)), position=5)
    world.issue(queue, c.DeallocPages(id=world.command_id(queue), pages=opaque[1:]))
    outcomes = [
        decode(world, queue, world.alloc_pages(queue, 1), context=named, position=24, max_tokens=0)
        for named in (others, [chain[3], *others])
    ]
    world.finish()
    assert [outcome.status for outcome in outcomes] == ["done", "done"]


def test_the_oldest_claims_what_is_being_computed_again() -> None:
    """A chain half way through finds no room, and holds blocks that are no page's."""
    world = tiny_world(9, max_batch_tokens=4)
    old, young = world.start_program().queues[0], world.start_program().queues[0]
    chain = fill(world, young, b"abcdefghijklmnopqrstuvwx")
    opaque = fill(world, young, bytes(range(36)), position=5)
    world.issue(young, c.DeallocPages(id=world.command_id(young), pages=opaque))
    opaque = fill(world, old, bytes(range(16)), position=5)
    last = decode(
        world, young, world.alloc_pages(young, 1), context=chain[5:], position=24, max_tokens=0
    )
    world.harness.step()
    first = decode(world, old, world.alloc_pages(old, 1), max_tokens=0)
    world.issue(old, c.DeallocPages(id=world.command_id(old), pages=opaque))
    world.finish()
    assert [first.status, last.status] == ["done", "done"]


@pytest.mark.parametrize("num_steps", range(6))
def test_what_is_computed_again_is_not_copied_before_it_is_there(num_steps: int) -> None:
    """Operations of a message run before its rows, the one that computes their source included."""
    world = tiny_world(8, max_batch_tokens=4)
    actor = world.start_program()
    queue, fork = actor.queues[0], world.create_queue(actor)
    chain = fill(world, queue, b"abcdefgh")
    opaque = fill(world, queue, bytes(range(32)), position=5)
    world.issue(queue, c.DeallocPages(id=world.command_id(queue), pages=opaque))
    decode(world, queue, world.alloc_pages(queue, 1), context=chain, position=8, max_tokens=0)
    (target,) = world.alloc_pages(fork, 1)
    fork.reference.pages[chain[1]] = queue.reference.pages[chain[1]]
    for _ in range(num_steps):
        world.harness.step()
    copy = c.CopyPage(
        id=world.command_id(fork),
        source=chain[1],
        source_offset=0,
        target=target,
        target_offset=0,
        num_slots=4,
    )
    world.issue(fork, copy)
    outcome = decode(world, fork, world.alloc_pages(fork, 2), context=[target], position=8)
    world.finish()
    assert outcome.status == "done"


def test_a_forward_that_waits_is_looked_at_again_behind_an_engine_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited for room; the embeds that it was to read are lost."""
    monkeypatch.setitem(SLOTS, 2, 14)

    class Machine(EngineLossMachine):
        num_host_blocks = 1
        tolerated = frozenset({"pool_exhausted", "queue_poisoned", "never_fits"})

    machine = Machine()
    machine.start(
        page_size=2,
        policy="round_robin",
        dispatch=Eager(),
        run_ahead=False,
        max_batch_tokens=12,
        max_steps=4,
        transfer_seed=None,
        max_sequences=6,
        output_share=0.0,
        priority_scope="tenant",
        pausing=PausingConfig(),
    )
    machine.forward(pick=0, text=list(b"xyxyxyxyxy"), keep=True, masked=True, gap=3)
    machine.crowd(pick=0, text=list(b"()*+"), room=8, stop=StopSpec(max_tokens=1))
    machine.run()
    stop = StopSpec(max_tokens=0)
    machine.go_on(pick=0, text=list(b"abcd"), sampler=SamplerSpec(), stop=stop, new_pages=2)
    machine.forward(pick=13, text=list(b"()*+"), keep=False, masked=True, gap=0)
    machine.step(num_steps=2)
    machine.lose_engine()
    machine.teardown()
