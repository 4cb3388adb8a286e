"""Balancers: which engine of a model a queue goes to, by what it says and what engines have."""

from __future__ import annotations

from typing import Any

import pytest
from control_world import ENGINE, World, alone

from quire.control.placement.balancers import (
    BALANCERS,
    SHORT_PROMPT_TOKENS,
    TOKENS_PER_CALL,
    create_balancer,
)
from quire.core import commands as c
from quire.core.actions import Fail, QueuePlaced
from quire.core.calls import SPARE_PRIORITY, CloseQueue, CreateQueue, Issue, SetQueuePriority
from quire.core.errors import ConfigError, EngineLost
from quire.core.events import Called, EngineGivenUp, ProgramStarted
from quire.core.ids import EngineId, ModelId, ProgramId, QueueId, TenantId
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool

OTHER = EngineId("fake#1")
PAGE = 4
POOL = {"num_blocks": 2048, "max_batch_tokens": 8192}


class Replicas:
    """Two engines of one model under ``balancer``; sessions ask them, one queue a request."""

    def __init__(self, balancer: str, **pool: int) -> None:
        pool = {**POOL, **pool}
        self.world = World(config={"balancer": balancer}, **pool)
        self.world.harness.start_engine(OTHER, FakeEngine(fake_pool(**pool)))
        self.num_queues = 0
        self.programs: set[int] = set()

    def session(self, program: int) -> None:
        if program not in self.programs:
            self.programs.add(program)
            self.world.harness.post(
                ProgramStarted(
                    time_s=self.world.harness.now_s,
                    program=ProgramId(program),
                    tenant=TenantId("t"),
                    form="session",
                    name="s",
                )
            )

    def ask(
        self,
        program: int,
        prompt: list[int],
        max_tokens: int = 2,
        depth: int = 0,
        priority: int = 0,
        **fields: Any,
    ) -> EngineId:
        """A request: pages and a decode in one call, as an edge sends them. Where it went."""
        self.session(program)
        self.num_queues += 1
        queue = self.num_queues
        self.world.queue(program, queue, depth=depth, priority=priority)
        pages = [queue * 1000 + n for n in range(-(-(len(prompt) + max_tokens) // PAGE))]
        commands = [
            self.world.alloc(pages),
            self.world.decode(pages, prompt, max_tokens, **fields),
        ]
        actions = self.world.harness.post(
            Called(
                time_s=self.world.harness.now_s,
                program=ProgramId(program),
                call=Issue(QueueId(queue), commands),
            )
        )
        [placed] = [one.engine for one in actions if isinstance(one, QueuePlaced)]
        return placed

    def done(self, program: int) -> None:
        """Its requests end, and their queues with them."""
        self.world.run()
        controller = self.world.controller
        known = controller._table.get(ProgramId(program))
        assert known is not None
        for queue in list(known.queues):
            self.world.harness.post(
                Called(time_s=0.0, program=ProgramId(program), call=CloseQueue(queue))
            )
        self.world.run()


def prompt_of(number: int, length: int = 64) -> list[int]:
    return [number, *(5 + n % 200 for n in range(length - 1))]


def test_in_turn() -> None:
    replicas = Replicas("round_robin")
    places = [replicas.ask(number, prompt_of(number)) for number in range(1, 5)]
    assert places == [ENGINE, OTHER, ENGINE, OTHER]


def test_the_least_used() -> None:
    replicas = Replicas("least_used")
    assert replicas.ask(1, prompt_of(1), 50) == ENGINE
    assert replicas.ask(2, prompt_of(2), 50) == OTHER
    assert replicas.ask(3, prompt_of(3), 2) == ENGINE
    assert replicas.ask(4, prompt_of(4), 50) == OTHER
    replicas.done(3)
    assert replicas.ask(5, prompt_of(5)) == ENGINE


def test_autellix_sends_short_prompts_to_the_least_used_engine_and_pins_long_ones() -> None:
    """Algorithm 2."""
    replicas = Replicas("autellix")
    long = prompt_of(1, SHORT_PROMPT_TOKENS + 1)
    assert replicas.ask(1, long, 100) == ENGINE
    assert replicas.ask(1, long, 100) == ENGINE, "though the other one is idle"
    assert replicas.ask(1, long[:-1], 100) == OTHER, "a short one is not pinned"
    assert replicas.ask(2, long, 100) == OTHER
    assert replicas.ask(2, long, 100) == OTHER
    assert replicas.ask(3, long, 100) == ENGINE, "the least used when the first of them comes"


def test_autellix_pins_a_program_anew_when_its_engine_is_lost() -> None:
    replicas = Replicas("autellix")
    long = prompt_of(1, SHORT_PROMPT_TOKENS + 1)
    assert replicas.ask(1, long) == ENGINE
    assert replicas.ask(1, long) == ENGINE
    replicas.world.harness.lose_engine(ENGINE)
    replicas.done(1)
    replicas.world.harness.start_engine(ENGINE, FakeEngine(fake_pool(**POOL)))
    replicas.ask(2, prompt_of(2), 50)  # its old home is the busier one
    assert replicas.ask(1, long) == OTHER
    assert replicas.ask(1, long) == OTHER, "its home from now on"


def test_the_keys_of_one_prompt_are_not_taken_for_those_of_another() -> None:
    """The balancer computes the keys of the prefix that is looked for first; the decode behind it
    has another prompt, which begins alike."""
    replicas = Replicas("quire")
    cached, other = prompt_of(1, 8 * PAGE), prompt_of(2, 8 * PAGE)
    replicas.ask(1, cached)
    replicas.done(1)
    replicas.session(2)
    world = replicas.world
    world.queue(2, 50)
    pages = list(range(100, 120))
    found = c.ImportPrefix(id=world.id(), tokens=cached, pages=list(range(200, 208)))
    decode = world.decode(pages, other)
    commands = [found, world.alloc(pages), decode]
    world.harness.post(Called(time_s=0.0, program=ProgramId(2), call=Issue(QueueId(50), commands)))
    world.run()
    row = world.controller.process(ProgramId(2))
    assert row is not None
    assert row.num_prefilled_tokens == len(other), "nothing of it is cached"


@pytest.mark.parametrize("balancer", ["quire", "occupied_kv"])
def test_a_prompt_that_is_no_tokens_is_placed_and_refused(balancer: str) -> None:
    """Balancers look at prompts that nobody has checked."""
    replicas = Replicas(balancer)
    world = replicas.world
    replicas.session(1)
    world.queue(1, 1)
    bad: Any = [None] * (2 * PAGE)
    commands = [world.alloc(range(8)), world.decode(range(8), bad)]
    called = Called(time_s=0.0, program=ProgramId(1), call=Issue(QueueId(1), commands))
    [error] = [one.error for one in world.harness.post(called) if isinstance(one, Fail)]
    assert error.code == "invalid_argument"


def test_what_one_engine_was_asked_for_is_not_what_another_has() -> None:
    """The keys that the balancer computed are those of the engine with the longest prefix."""
    replicas = Replicas("quire")
    prompt = prompt_of(1, 8 * PAGE)
    replicas.ask(1, prompt[: 2 * PAGE + 1])
    replicas.done(1)
    replicas.ask(2, prompt, 2)
    replicas.done(2)
    assert replicas.ask(3, list(prompt)) == ENGINE
    replicas.done(3)
    row = replicas.world.controller.process(ProgramId(3))
    assert row is not None
    assert row.num_cached_tokens == len(prompt) - 1


def test_quire_goes_where_the_prompt_is_cached_until_the_queue_there_costs_more() -> None:
    replicas = Replicas("quire")
    cached = prompt_of(1, 2 * TOKENS_PER_CALL + 2 * PAGE)
    assert replicas.ask(1, cached) == ENGINE
    replicas.done(1)
    assert replicas.ask(2, prompt_of(2)) == ENGINE, "nothing is cached for it, and none is busy"
    replicas.done(2)
    assert replicas.ask(3, [*cached, 7, 7], 100) == ENGINE
    assert replicas.ask(4, [*cached, 8, 8], 100) == ENGINE
    assert replicas.ask(5, [*cached, 9, 9], 100) == ENGINE
    assert replicas.ask(6, [*cached, 6, 6], 100) == OTHER, "three calls cost more than two prompts"
    assert replicas.ask(7, prompt_of(7)) == OTHER


def test_quire_keeps_away_from_what_its_own_program_needs_first() -> None:
    """Of a refined answer: the first call, and the beginnings of the next two."""
    replicas = Replicas("quire")

    def call(depth: int) -> EngineId:
        return replicas.ask(1, prompt_of(depth), 50, depth=depth)

    assert [call(depth) for depth in (5, 3, 1)] == [ENGINE, OTHER, OTHER]
    assert call(1) == ENGINE, "which has fewer calls"
    assert replicas.ask(2, prompt_of(2), 50, depth=1) == ENGINE, "nothing here is its own"


@pytest.mark.parametrize("balancer", ["quire", "least_used"])
def test_spare_calls_count_for_one_another_alone(balancer: str) -> None:
    replicas = Replicas(balancer)
    assert replicas.ask(1, prompt_of(1), 50, priority=SPARE_PRIORITY) == ENGINE
    assert replicas.ask(2, prompt_of(2), 50, priority=SPARE_PRIORITY) == OTHER
    assert replicas.ask(3, prompt_of(3), 50) == ENGINE, "where a spare call gives way"
    spare = [replicas.ask(n, prompt_of(n), 9, priority=SPARE_PRIORITY) for n in (6, 7)]
    assert spare == [OTHER, OTHER], "beside other calls they would not run"
    replicas.world.run()
    assert replicas.ask(4, prompt_of(4), 50, priority=SPARE_PRIORITY) == ENGINE
    kept = SetQueuePriority(QueueId(replicas.num_queues), 0)
    replicas.world.harness.post(Called(time_s=0.0, program=ProgramId(4), call=kept))
    assert replicas.ask(5, prompt_of(5), 50) == OTHER, "the one on the other engine is needed"


def test_a_call_that_becomes_spare_while_it_runs_gives_way_too() -> None:
    replicas = Replicas("least_used")
    assert replicas.ask(1, prompt_of(1), 50) == ENGINE
    spare = SetQueuePriority(QueueId(replicas.num_queues), SPARE_PRIORITY)
    replicas.world.harness.post(Called(time_s=0.0, program=ProgramId(1), call=spare))
    assert replicas.ask(2, prompt_of(2), 50) == ENGINE, "the first engine has no call that counts"


def test_quire_sees_no_cache_where_the_request_does_not_use_it() -> None:
    replicas = Replicas("quire")
    cached = prompt_of(1, 1024)
    replicas.ask(1, cached)
    replicas.done(1)
    replicas.ask(2, prompt_of(2), 50)
    assert replicas.ask(3, cached, cache=False) == OTHER
    assert replicas.ask(4, cached) == ENGINE


def test_another_tenants_cache_is_no_reason() -> None:
    replicas = Replicas("quire")
    cached = prompt_of(1, 1024)
    replicas.ask(1, cached)
    replicas.done(1)
    replicas.ask(2, prompt_of(2), 50)
    world = replicas.world
    world.program(9, queues=0, tenant="other")
    world.queue(9, 1)
    actions = world.harness.post(
        Called(
            time_s=0.0,
            program=ProgramId(9),
            call=Issue(QueueId(1), [world.alloc([1]), world.decode([1], cached, 1)]),
        )
    )
    assert [one.engine for one in actions if isinstance(one, QueuePlaced)] == [OTHER]


def test_occupied_memory_counts_not_calls() -> None:
    """One long context weighs as much as several short ones."""
    replicas = Replicas("occupied_kv")
    assert replicas.ask(1, prompt_of(1, 400), 200) == ENGINE
    short = [replicas.ask(number, prompt_of(number, 96), 200) for number in range(2, 6)]
    assert short == [OTHER] * 4
    assert replicas.ask(6, prompt_of(6, 96), 200) == OTHER, "384 tokens wait there"
    assert replicas.ask(7, prompt_of(7, 96), 200) == ENGINE


def test_the_rest_of_a_prompt_that_has_begun_counts() -> None:
    replicas = Replicas("occupied_kv", max_batch_tokens=64)
    assert replicas.ask(1, prompt_of(1, 512)) == ENGINE
    replicas.world.harness.step_engine(ENGINE)  # 128 of its tokens are there, or on their way
    assert replicas.ask(2, prompt_of(2, 200)) == OTHER
    assert replicas.ask(3, prompt_of(3, 200)) == OTHER, "200 against 512"


def test_a_prompt_in_pieces_is_one_call() -> None:
    """From its first message on, whose result is not there yet."""
    replicas = Replicas("least_used", max_batch_tokens=64)
    assert replicas.ask(1, prompt_of(1, 512)) == ENGINE
    assert replicas.ask(2, prompt_of(2, 512)) == OTHER
    assert replicas.ask(3, prompt_of(3, 16)) == ENGINE
    assert replicas.ask(4, prompt_of(4, 16)) == OTHER
    replicas.world.run()
    assert replicas.ask(5, prompt_of(5, 512)) == ENGINE
    assert replicas.ask(6, prompt_of(6, 16)) == OTHER
    assert replicas.ask(7, prompt_of(7, 16)) == ENGINE, "one call each"


def test_what_is_kept_for_the_cache_alone_occupies_nothing() -> None:
    replicas = Replicas("occupied_kv")
    assert replicas.ask(1, prompt_of(1, 1024)) == ENGINE
    replicas.done(1)
    assert replicas.ask(2, prompt_of(2, 64)) == ENGINE


def test_a_prompt_occupies_less_where_it_is_cached() -> None:
    replicas = Replicas("occupied_kv")
    shared = prompt_of(1, 256)
    assert replicas.ask(1, shared, 200) == ENGINE
    replicas.world.harness.step_engine(ENGINE)
    assert replicas.ask(2, prompt_of(2, 96), 200) == OTHER
    assert replicas.ask(3, [*shared, 7], cache=False) == OTHER
    assert replicas.ask(4, prompt_of(4, 256)) == ENGINE
    assert replicas.ask(5, [*shared, 7]) == ENGINE, "350 against 510, of which it has 256"


@pytest.mark.parametrize("name", sorted(BALANCERS))
def test_a_split_prompt_stays_on_one_engine(name: str) -> None:
    """Beginning and rest come as two commands of one queue; the other engine is idle."""
    replicas = Replicas(name)
    world = replicas.world
    prompt = prompt_of(1, 512)
    home = replicas.ask(1, prompt[:400], 0)
    world.run()
    pages = [1000 + n for n in range(-(-400 // PAGE))] + list(range(5000, 5040))
    [_, rest] = world.issue(
        1,
        world.alloc(range(5000, 5040)),
        world.decode(pages, prompt[400:], 8, position=400),
        queue=1,
    )
    world.run()
    assert rest.tokens == alone(prompt, 8, **POOL)
    known = world.controller._table.get(ProgramId(1))
    assert known is not None
    assert {queue.placed_on for queue in known.queues.values()} == {home}


@pytest.mark.parametrize("name", sorted(BALANCERS))
def test_pages_bind_a_queue_and_engines_that_are_down_get_none(name: str) -> None:
    replicas = Replicas(name)
    world = replicas.world
    replicas.session(1)
    for queue in (1, 2, 3):
        world.queue(1, queue)
    world.issue(1, world.alloc([1, 2]), queue=1)
    home = world.controller._table.get(ProgramId(1)).queues[QueueId(1)].placed_on  # type: ignore[union-attr]
    for number in (5, 6, 7):  # the balancer would choose another one now and then
        replicas.ask(number, prompt_of(number), 50)
    for queue in (2, 3):
        world.issue(1, world.decode([1, 2], prompt_of(queue, 6), 1), queue=queue)
        placed = world.controller._table.get(ProgramId(1)).queues[QueueId(queue)].placed_on  # type: ignore[union-attr]
        assert placed == home
    world.harness.lose_engine(OTHER)
    assert {replicas.ask(number, prompt_of(number)) for number in (10, 11, 12)} == {ENGINE}


def test_an_export_binds_a_queue() -> None:
    replicas = Replicas("round_robin")
    world = replicas.world
    replicas.session(1)
    world.queue(1, 1)
    world.issue(1, world.alloc([1]), world.decode([1], [1, 2, 3], 1), queue=1)
    world.run()
    world.issue(1, c.ExportPages(id=world.id(), pages=[1], name="kept"), queue=1)
    world.run()
    for program in (2, 3):
        replicas.session(program)
        world.queue(program, 100 + program)
        [imported] = world.issue(
            program, c.ImportPages(id=world.id(), name="kept", pages=[1]), queue=100 + program
        )
        world.run()
        assert imported.status == "done"


def test_an_unknown_balancer_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"'best': choose from autellix, least_used, oc"):
        create_balancer("best")


# -- an engine that does not come back -------------------------------------------------------------


def give_up(world: World, engine: EngineId) -> None:
    error = EngineLost(f"engine {engine} was lost 5 times").record()
    world.harness.post(
        EngineGivenUp(time_s=world.harness.now_s, engine=engine, model=ModelId("fake"), error=error)
    )


def bind(world: World, program: int) -> None:
    """It has exported a page where it is."""
    world.do(program, world.alloc([90]), world.decode([90], [1, 2], 1))
    world.do(program, c.ExportPages(id=world.id(), pages=[90], name=f"of {program}"))


def test_what_waits_for_an_engine_that_is_given_up_moves_or_fails() -> None:
    replicas = Replicas("round_robin")
    world = replicas.world
    pages = range(8)
    for program in (1, 2, 3):
        world.program(program)
        world.issue(program, world.alloc(pages))
    bind(world, 1)  # with the third on the first engine
    world.harness.lose_engine(OTHER)
    world.harness.lose_engine(ENGINE)
    decodes = {
        program: world.issue(program, world.decode(pages, [1, 2, 3], 20))[0]
        for program in (1, 2, 3)
    }
    world.harness.start_engine(OTHER, FakeEngine(fake_pool(**POOL)))
    give_up(world, ENGINE)
    world.run()
    assert decodes[2].tokens == decodes[3].tokens == alone([1, 2, 3], 20)
    bound = decodes[1].error
    assert bound is not None
    assert "was lost 5 times" in bound.message
    [later] = world.issue(1, world.alloc([50]))
    assert later.error is not None
    world.queue(1, 7)
    [anew] = world.issue(1, world.alloc([60]), queue=7)
    assert anew.status == "done"
    placed = world.controller._table.get(ProgramId(1)).queues[QueueId(7)].placed_on  # type: ignore[union-attr]
    assert placed == OTHER, "a new queue goes to an engine that is there"


def test_commands_for_an_engine_that_is_given_up_are_told_why() -> None:
    replicas = Replicas("round_robin")
    world = replicas.world
    world.program(1)
    world.issue(1, world.alloc([1]))
    bind(world, 1)
    world.harness.lose_engine(ENGINE)
    give_up(world, ENGINE)
    [late] = world.issue(1, world.alloc([2]))
    assert late.error is not None
    assert "was lost 5 times" in late.error.message
    assert {replicas.ask(number, prompt_of(number)) for number in (5, 6)} == {OTHER}


def test_a_queue_that_is_created_is_not_placed_before_its_first_command() -> None:
    replicas = Replicas("round_robin")
    replicas.session(1)
    actions = replicas.world.harness.post(
        Called(
            time_s=0.0,
            program=ProgramId(1),
            call=CreateQueue(QueueId(77), ModelId("fake")),
        )
    )
    assert not [one for one in actions if isinstance(one, QueuePlaced)]
