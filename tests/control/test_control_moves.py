"""Programs of an engine that is lost go on on another one of its model, as if nothing happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from control_world import ENGINE, World, alone

from quire.control import Controller
from quire.control.programs.program import Program
from quire.core import commands as c
from quire.core.actions import Action, QueuePlaced
from quire.core.calls import Cancel, ResetQueue
from quire.core.decoding import Processor, SamplerSpec, StopSpec
from quire.core.errors import EngineLost
from quire.core.events import EngineDown, EngineGivenUp, EngineUp, Event, ProgramEnded
from quire.core.ids import EngineId, ModelId, ProgramId, QueueId
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool
from quire.testing.harness import CommandOutcome

OTHER, THIRD = EngineId("fake#1"), EngineId("fake#2")
PROMPT = [1, 2, 3, 4, 5]
HOT = SamplerSpec((Processor("temperature", {"temperature": 4.0}),), greedy=False, seed=7)
PENALISED = SamplerSpec((Processor("frequency_penalty", {"penalty": 9.0}),))


def start(world: World, engine: EngineId, **pool: int) -> None:
    world.harness.start_engine(engine, FakeEngine(fake_pool(**pool)))


def replicas(**pool: int) -> World:
    """Two engines; whatever is issued first is placed on the first."""
    world = World(config={"balancer": "least_used"}, **pool)
    start(world, OTHER, **pool)
    return world


def known(world: World, program: int) -> Program:
    found = world.controller._table.get(ProgramId(program))
    assert found is not None
    return found


def place(world: World, program: int = 1, queue: int = 1) -> EngineId | None:
    return known(world, program).queues[QueueId(queue)].placed_on


def begin(world: World, program: int = 1, **fields: Any) -> CommandOutcome:
    """A decode of 30 tokens on the first engine."""
    world.program(program)
    decode = world.issue(
        program,
        world.alloc(range(12)),
        world.decode(range(12), PROMPT, 30, **fields),
        world.dealloc(range(12)),
    )[1]
    assert place(world, program) == ENGINE
    return decode


def done(outcome: CommandOutcome) -> tuple[Any, ...]:
    """What a decode has told, however it came in pieces."""
    assert outcome.status == "done", outcome
    chunks = outcome.chunks
    logprobs = [one for chunk in chunks for one in chunk.logprobs or ()]
    first, last = chunks[0], chunks[-1]
    assert not any(chunk.num_cached_tokens for chunk in chunks[1:])
    return (
        outcome.tokens, last.finish_reason, last.matched, first.seed, first.prompt_logprobs,
        [(one.token_id, one.top_ids) for one in logprobs],
    )  # fmt: skip


# -- decodes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"cache": False},
        {"sampler": HOT, "num_logprobs": 2},
        {"sampler": PENALISED, "num_prompt_logprobs": 2},
        {"stop": StopSpec(max_tokens=30, strings=(b"\x21",))},
        {"stop": StopSpec(max_tokens=0)},
        {"context": [], "position": 3},
    ],
    ids=["greedy", "uncached", "sampled", "penalised", "stop", "prompt only", "opaque pages"],
)
@pytest.mark.parametrize("num_messages", range(6))
@pytest.mark.parametrize("run_ahead", [False, True])
def test_a_decode_goes_on_elsewhere_and_says_the_same(
    fields: dict[str, Any], num_messages: int, run_ahead: bool
) -> None:
    """Its prompt takes two messages; what it has told by then is not told again."""

    def run(is_lost: bool) -> tuple[Any, ...]:
        config = {"run_ahead": run_ahead, "max_steps_per_message": 4}
        world = World(config=config, max_batch_tokens=4)
        start(world, OTHER, max_batch_tokens=4)
        decode = begin(world, **fields)
        for _ in range(num_messages):
            world.harness.step_engine(ENGINE)
        if is_lost and decode.status == "pending":
            world.harness.lose_engine(ENGINE)
            assert place(world) == OTHER
        world.run()
        world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(1)))
        for engine in world.controller.statistics().engines:
            assert engine.pool.num_held == engine.num_open_sequences == 0
        return done(decode)

    assert run(is_lost=True) == run(is_lost=False)


@pytest.mark.parametrize("num_messages", range(4))
def test_the_pages_of_a_decode_that_went_on_elsewhere_can_be_read_after_it(
    num_messages: int,
) -> None:
    def run(is_lost: bool) -> tuple[Any, ...]:
        world = replicas(max_batch_tokens=4)
        world.program()
        world.issue(1, world.alloc(range(12)), world.decode(range(12), PROMPT, 9))
        for _ in range(num_messages):
            world.harness.step_engine(ENGINE)
        if is_lost:
            world.harness.lose_engine(ENGINE)
            assert place(world) == OTHER
        world.run()
        return done(world.do(1, world.decode(range(12), [7], 4, position=len(PROMPT) + 9))[0])

    assert run(is_lost=True) == run(is_lost=False)


def test_what_a_decode_has_told_and_what_waits_behind_it_stays() -> None:
    world = replicas()
    decode = begin(world)
    [behind] = world.issue(1, world.alloc([50]))
    for _ in range(3):
        world.harness.step_engine(ENGINE)
    told = len(decode.tokens)
    assert told
    world.harness.lose_engine(ENGINE)
    assert (decode.status, behind.status) == ("pending", "pending")
    world.run()
    assert decode.tokens == alone(PROMPT, 30)
    assert behind.status == "done"
    assert known(world, 1).num_generated_tokens == 30, "no token counts twice"
    assert known(world, 1).num_preemptions == 0


def test_a_command_that_loses_two_engines_fails_and_the_third_goes_on() -> None:
    world = replicas()
    start(world, THIRD)
    decode = begin(world)
    world.program(2)
    waits = world.issue(2, world.alloc(range(8)), world.decode(range(8), PROMPT, 4))[1]
    world.harness.step_engine(ENGINE)
    world.harness.lose_engine(ENGINE)
    second = place(world)
    assert second in (OTHER, THIRD)
    world.harness.lose_engine(second)
    assert decode.error is not None
    assert (decode.error.code, decode.error.retriable) == ("engine_lost", True)
    assert f"engine {second} is lost" in decode.error.message
    world.run()
    assert waits.tokens == alone(PROMPT, 4)


def displaced(world: World) -> tuple[CommandOutcome, CommandOutcome]:
    """A decode of program 1 that lost its seat to the second, a more urgent one of program 2."""
    for program, priority in ((1, 0), (2, 1)):
        if world.controller._table.get(ProgramId(program)) is None:
            world.program(program, priority=priority)
    pages = range(12)
    first = world.issue(1, world.alloc(pages), world.decode(pages, PROMPT, 40))[1]
    while len(first.tokens) < 17:
        world.harness.step_engine(ENGINE)
    urgent = world.issue(2, world.alloc(pages), world.decode(pages, PROMPT, 40))[1]
    while not urgent.tokens:
        world.harness.step_engine(ENGINE)
    assert len(first.tokens) < 40
    return first, urgent


SMALL_STEPS = {"balancer": "least_used", "max_steps_per_message": 4}


def test_a_command_that_was_in_no_message_has_lost_nothing() -> None:
    world = World(config=SMALL_STEPS, max_sequences=1)
    first, urgent = displaced(world)
    [entry] = known(world, 1).entries.values()
    for engine, other in ((ENGINE, OTHER), (OTHER, ENGINE)):
        start(world, other, max_sequences=1)
        world.harness.lose_engine(engine)
    assert entry.num_losses == 0
    assert urgent.error is not None
    world.run()
    assert first.tokens == alone(PROMPT, 40)


def test_what_has_begun_does_not_wait_for_an_engine_that_is_given_up() -> None:
    """A decode that no message carries, of a program that is bound there."""
    world = World(config=SMALL_STEPS, max_sequences=1)
    world.program(1)
    export(world)
    first, urgent = displaced(world)
    start(world, OTHER, max_sequences=1)
    world.harness.lose_engine(ENGINE)
    assert first.status == "pending"
    gone = EngineLost("gone for good").record()
    model = ModelId("fake")
    world.harness.post(EngineGivenUp(time_s=0.0, engine=ENGINE, model=model, error=gone))
    assert first.error == gone
    world.run()
    assert urgent.tokens == alone(PROMPT, 40)


def test_a_decode_that_found_no_room_looks_for_it_elsewhere() -> None:
    """It has mapped what the prefix index had of its prompt."""
    config = {"balancer": "least_used", "max_steps_per_message": 1}
    world = World(config=config, num_blocks=8, num_host_blocks=0)
    text = list(range(1, 13))
    for program in (1, 2):
        world.program(program)
        world.issue(program, world.alloc(range(8)))
    world.do(2, world.decode(range(2), text[:8], 0), world.dealloc(range(2)))
    first = world.issue(1, world.decode(range(8), [9, 9], 28))[0]
    while len(first.tokens) < 20:
        world.harness.step_engine(ENGINE)
    second = world.issue(2, world.decode(range(2, 8), [*text, 5], 0))[0]
    world.harness.step_engine(ENGINE)
    world.harness.step_engine(ENGINE)
    [entry] = known(world, 2).entries.values()
    assert entry.state == "queued"
    assert entry.run is not None
    start(world, OTHER, num_blocks=8, num_host_blocks=0)
    world.harness.lose_engine(ENGINE)
    start(world, ENGINE, num_blocks=8, num_host_blocks=0)
    world.run()
    assert first.tokens == alone([9, 9], 28)
    more = world.do(2, world.decode(range(2, 8), [6], 3, position=13))[0]
    assert (second.status, more.tokens) == ("done", alone([*text, 5, 6], 3))


def test_a_cancelled_decode_does_not_move() -> None:
    world = replicas()
    decode = begin(world)
    world.harness.call(ProgramId(1), Cancel(decode.command.id))
    world.harness.lose_engine(ENGINE)
    assert decode.status == "cancelled"


def test_without_another_engine_what_is_in_flight_fails() -> None:
    world = World()
    decode = begin(world)
    [behind] = world.issue(1, world.alloc([50]))
    world.harness.lose_engine(ENGINE)
    assert decode.error is not None
    assert behind.error is not None


def test_an_engine_with_other_weights_is_no_other_engine() -> None:
    world = World(config={"balancer": "least_used"})
    info = msgspec.structs.replace(FakeEngine(fake_pool()).info, content="another")
    up = EngineUp(time_s=0.0, engine=OTHER, model=ModelId("fake"), info=info)
    world.harness.post(up)
    decode = begin(world)
    world.harness.lose_engine(ENGINE)
    assert decode.error is not None
    assert place(world) == ENGINE


def test_an_engine_that_comes_up_again_unasked_was_lost() -> None:
    world = replicas()
    decode = begin(world)
    world.harness.step_engine(ENGINE)
    start(world, ENGINE)
    assert place(world) == OTHER
    world.run()
    assert decode.tokens == alone(PROMPT, 30)


# -- pages -----------------------------------------------------------------------------------------


def test_pages_whose_tokens_are_known_are_computed_again() -> None:
    world = replicas()
    world.program(1)
    first = world.do(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 6))[1]
    world.harness.lose_engine(ENGINE)
    [more] = world.issue(1, world.decode(range(8), [first.tokens[-1]], 5, position=10))
    assert place(world) == OTHER, "an idle program goes when its next command comes"
    world.run()
    assert more.tokens == alone(PROMPT, 11)[6:]


def test_a_decode_that_goes_on_elsewhere_computes_only_what_is_not_there() -> None:
    """Two pages of its prompt are. What it computes is found by others."""
    world = replicas(page_size=4)
    prompt = list(range(10, 22))
    for program in (1, 2):
        world.program(program)
    decode = world.issue(1, world.alloc(range(8)), world.decode(range(8), prompt, 20))[1]
    world.issue(2, world.alloc(range(4)), world.decode(range(4), [*prompt[:8], 99], 1))
    assert (place(world, 1), place(world, 2)) == (ENGINE, OTHER)
    world.harness.step_engine(OTHER)
    world.harness.step_engine(ENGINE)
    assert len(decode.tokens) == 1
    world.harness.dispatched.clear()
    world.harness.lose_engine(ENGINE)
    world.run()
    assert decode.tokens == alone(prompt, 20, page_size=4)
    rows = [one.batch.forward for one in world.harness.dispatched]
    assert sum(len(row.tokens) for row in rows if row is not None) == len(prompt) + 1 - 8
    tokens = [*prompt, *decode.tokens]
    find = c.ImportPrefix(id=world.id(), tokens=tokens, pages=list(range(50, 58)))
    assert world.do(2, find)[0].reply.num_tokens == len(tokens) - 4, "one token is always left"


def test_pages_that_the_new_engine_has_are_shared() -> None:
    """And two pages that shared a content go on sharing one."""
    world = replicas(page_size=4)
    world.program(1)
    world.do(1, world.alloc(range(3)), world.decode(range(3), [*PROMPT, 6, 7, 8], 1))
    world.program(2)
    world.issue(1, world.alloc(range(20, 40)), world.decode(range(20, 40), [9], 60))
    world.do(2, world.alloc(range(3)), world.decode(range(3), [*PROMPT, 6, 7, 8], 1))
    assert (place(world, 1), place(world, 2)) == (ENGINE, OTHER)
    world.harness.lose_engine(ENGINE)
    [end] = world.issue(1, world.decode([2], [3], 2, context=[0, 1, 2], position=8))
    world.run()
    assert end.tokens == alone([*PROMPT, 6, 7, 8, 3], 2)
    mine, theirs = known(world, 1).pages, known(world, 2).pages
    assert mine[0].content is theirs[0].content is not None


def opaque_page(world: World) -> None:
    mask = [[True] * 4] * 4
    world.do(
        1,
        world.alloc([20]),
        world.alloc_embeds(range(4)),
        world.embed(range(4), range(4)),
        world.forward([], range(4), [20], mask=mask),
        c.DeallocEmbeds(id=world.id(), embeds=[0, 1, 2, 3]),
    )


def written_embed(world: World) -> None:
    world.do(1, world.alloc_embeds([1]), world.embed([1], [5]))


def token_slot(world: World) -> None:
    world.do(1, world.alloc([20]), world.alloc_embeds([1, 2]), world.embed([1], [5]))
    world.do(1, world.forward([], [1], [20], [2]), world.sample([2], 1, token_slots=[0]))
    world.do(1, c.DeallocEmbeds(id=world.id(), embeds=[1, 2]))


def export(world: World) -> None:
    world.do(1, world.alloc([20]), world.decode([20], [1, 2], 1))
    world.do(1, c.ExportPages(id=world.id(), pages=[20], name="kept"))


@pytest.mark.parametrize("hold", [opaque_page, written_embed, token_slot, export])
def test_what_exists_on_the_lost_engine_alone_binds_the_whole_program(
    hold: Callable[[World], None],
) -> None:
    world = replicas()
    world.program(1, queues=2)
    hold(world)
    [decode] = world.issue(1, world.alloc(range(12)), queue=2)
    decode = world.issue(1, world.decode(range(12), PROMPT, 30), queue=2)[0]
    world.harness.lose_engine(ENGINE)
    assert decode.error is not None, "it was in flight"
    assert place(world, 1, 1) == place(world, 1, 2) == ENGINE
    world.harness.call(ProgramId(1), ResetQueue(QueueId(2)))
    [decode] = world.issue(1, world.alloc(range(70, 80)), queue=2)
    [decode] = world.issue(1, world.decode(range(70, 80), PROMPT, 30), queue=2)
    world.run()
    assert decode.status == "pending"
    start(world, ENGINE)
    world.run()
    assert decode.tokens == alone(PROMPT, 30)


def test_an_export_on_the_lost_engine_binds_who_waits_to_import_it() -> None:
    world = World(config={"balancer": "least_used"})
    world.program(1)
    export(world)
    importing, other = begin(world, 2), begin(world, 3)
    [imported] = world.issue(2, c.ImportPages(id=world.id(), name="kept", pages=[30]))
    start(world, OTHER)
    world.harness.lose_engine(ENGINE)
    assert importing.error is not None
    assert imported.error is not None
    assert (place(world, 2), place(world, 3)) == (ENGINE, OTHER)
    world.run()
    assert other.tokens == alone(PROMPT, 30)


def test_the_queues_of_a_program_go_together() -> None:
    """One has begun, one waits for it, one has never had a command."""
    world = replicas()
    world.program(1, queues=3)
    first = world.issue(1, world.alloc(range(12)), world.decode(range(12), PROMPT, 30))[1]
    second = world.issue(
        1,
        world.alloc(range(20, 24)),
        world.decode(range(20, 24), [7], 2, after=(first.command.id,)),
        queue=2,
    )[1]
    start(world, THIRD)
    world.harness.step_engine(ENGINE)
    actions = world.harness.post(
        EngineDown(time_s=world.harness.now_s, engine=ENGINE, error=EngineLost("gone").record())
    )
    placed = [(one.queue, one.engine) for one in actions if isinstance(one, QueuePlaced)]
    [target] = {engine for _, engine in placed}
    assert [queue for queue, _ in placed] == [1, 2]
    assert target in (OTHER, THIRD)
    assert place(world, 1, 3) is None
    world.issue(1, world.alloc([90]), queue=3)
    assert place(world, 1, 3) == target
    world.run()
    assert first.tokens == alone(PROMPT, 30)
    assert second.tokens == alone([7], 2)


def test_embeds_without_a_value_are_bound_again_elsewhere() -> None:
    world = replicas(num_embeds=8)
    world.program(1)
    world.do(1, world.alloc_embeds(range(6)))
    world.harness.lose_engine(ENGINE)
    outcomes = world.do(
        1,
        world.alloc([1]),
        world.embed(range(3), PROMPT[:3]),
        world.forward([], range(3), [1], [5]),
        world.sample([5], 3),
    )
    assert [one.status for one in outcomes] == ["done"] * 4
    assert outcomes[-1].reply.token_ids == alone(PROMPT[:3], 1)  # type: ignore[union-attr]
    engines = {engine.engine: engine for engine in world.controller.statistics().engines}
    assert engines[ENGINE].num_free_embeds == 8
    assert engines[OTHER].num_free_embeds == 2


def test_a_program_stays_if_the_other_engine_has_not_so_many_embeds() -> None:
    world = replicas(num_embeds=8)
    decodes = []
    for program, num_embeds in ((1, 4), (2, 6)):
        world.program(program)
        world.issue(program, world.alloc_embeds(range(num_embeds)), world.alloc(range(12)))
        decodes += world.issue(program, world.decode(range(12), PROMPT, 30))
    assert (place(world, 1), place(world, 2)) == (ENGINE, OTHER)
    world.harness.lose_engine(ENGINE)
    assert decodes[0].error is not None
    assert place(world, 1) == ENGINE
    world.run()
    assert decodes[1].tokens == alone(PROMPT, 30)


def test_a_forward_in_flight_fails_and_its_program_waits() -> None:
    world = replicas()
    world.program(1)
    world.do(1, world.alloc([1]), world.alloc_embeds(range(4)), world.embed(range(3), [1, 2, 3]))
    [forward] = world.issue(1, world.forward([], range(3), [1], [3]))
    world.harness.lose_engine(ENGINE)
    assert forward.error is not None
    assert place(world) == ENGINE


# -- engines that join -----------------------------------------------------------------------------


def test_an_engine_that_comes_up_takes_over_from_one_that_is_down() -> None:
    world = World()
    world.program(1)
    world.harness.lose_engine(ENGINE)
    decode = world.issue(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 6))[1]
    world.run()
    assert decode.status == "pending"
    start(world, OTHER)
    assert place(world) == OTHER
    world.run()
    assert decode.tokens == alone(PROMPT, 6)


def test_an_engine_that_comes_up_is_given_what_waits_as_far_as_the_balancer_says() -> None:
    world = World(config={"balancer": "least_used"}, max_sequences=1)
    decodes = []
    for program in range(1, 6):
        world.program(program)
        pages = range(4)
        decodes += world.issue(program, world.alloc(pages), world.decode(pages, PROMPT, 4))[1:]
    start(world, OTHER, max_sequences=1)
    places = [place(world, program) for program in range(1, 6)]
    assert places == [ENGINE, OTHER, OTHER, ENGINE, ENGINE]
    world.run()
    assert all(decode.tokens == alone(PROMPT, 4) for decode in decodes)


def test_a_program_that_has_computed_something_does_not_leave_an_engine_that_is_up() -> None:
    world = World(config={"balancer": "least_used"}, max_sequences=1)
    world.program(1)
    world.program(2)
    world.do(2, world.alloc(range(8)), world.decode(range(4), PROMPT, 2))
    busy = begin(world, 3)
    waiting = world.issue(2, world.decode(range(4, 8), PROMPT, 2))[0]
    start(world, OTHER, max_sequences=1)
    assert place(world, 2) == ENGINE
    world.run()
    assert (busy.status, waiting.status) == ("done", "done")


class Watched:
    """A controller, and what it has said."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.told: list[str] = []

    def handle(self, event: Event) -> list[Action]:
        actions = self._controller.handle(event)
        self.told += map(repr, actions)
        return actions

    def check_invariants(self) -> None:
        self._controller.check_invariants()


def test_moves_are_the_same_in_a_replay() -> None:
    """From the events alone: nothing of a clock, an address or an order of hashing."""

    def run() -> list[str]:
        world = World(config={"balancer": "quire"}, max_sequences=2)
        start(world, OTHER, max_sequences=2)
        start(world, THIRD, max_sequences=2)
        watched = Watched(world.controller)
        world.harness.shell.controller = watched
        for program in range(1, 13):
            world.program(program, tenant=f"t{program % 3}")
            world.issue(program, world.alloc(range(8)), world.decode(range(8), PROMPT, 20))
        for lost in (ENGINE, OTHER):
            for _ in range(4):
                world.harness.step()
            world.harness.lose_engine(lost)
        start(world, ENGINE, max_sequences=2)
        world.run()
        return watched.told

    first = run()
    assert sum("QueuePlaced" in one for one in first) > 12, "some were placed anew"
    assert run() == first
