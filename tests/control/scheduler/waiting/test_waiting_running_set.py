"""Who has a sequence: chosen anew for each message, by tenant's share, priority and policy."""

from __future__ import annotations

from typing import Any

import pytest
from control_world import World, alone

from quire.control import Controller
from quire.control.policies import (
    LevelQueues,
    ProgramAttainedService,
    RoundRobin,
)
from quire.control.scheduler.waiting.seats import HISTORY_PER_TOKEN, MIN_TOKENS
from quire.core.calls import SetQueuePriority
from quire.core.config import TenantConfig
from quire.core.errors import ConfigError
from quire.core.events import Called
from quire.core.ids import ProgramId, QueueId, TenantId
from quire.core.policy import Policy
from quire.core.scheduler_config import LevelsConfig, SchedulerConfig
from quire.testing.harness import CommandOutcome

POOL = {"num_blocks": 512, "num_host_blocks": 512}
LONG, SHORT = 150, 8


def world_of(
    *, policy: Policy | None = None, tenants: tuple[TenantConfig, ...] = (), **settings: Any
) -> World:
    settings.setdefault("max_steps_per_message", 1)
    pool = POOL | {name: settings.pop(name) for name in list(settings) if name in _POOL_SETTINGS}
    controller = Controller(SchedulerConfig(**settings), tenants, policy=policy)
    return World(controller=controller, **pool)


_POOL_SETTINGS = {"max_sequences", "num_blocks", "num_host_blocks", "max_batch_tokens"}


def prompt(program: int) -> list[int]:
    return [program, *range(40, 44)]


def ask(world: World, program: int, max_tokens: int, **fields: Any) -> CommandOutcome:
    world.program(program, **fields)
    pages = range(-(-(len(prompt(program)) + max_tokens) // 4))
    return world.issue(
        program, world.alloc(pages), world.decode(pages, prompt(program), max_tokens)
    )[1]


def answer(program: int, max_tokens: int) -> list[int]:
    return alone(prompt(program), max_tokens, **POOL)


def steps(world: World, count: int) -> None:
    for _ in range(count):
        assert world.harness.step()


def run_until(world: World, outcome: CommandOutcome) -> None:
    while outcome.status == "pending":
        assert world.harness.step()


def preemptions(world: World) -> dict[int, int]:
    return {row.program: row.num_preemptions for row in world.controller.processes()}


# -- nobody could join -----------------------------------------------------------------------------


def test_one_more_decode_than_sequences_does_not_end_messages_of_many_steps() -> None:
    def num_messages(num_decodes: int) -> int:
        world = world_of(max_sequences=8, step_quantum_s=1.0, max_steps_per_message=32)
        outcomes = [ask(world, number, 100) for number in range(1, num_decodes + 1)]
        run_until(world, outcomes[0])
        return len(world.harness.dispatched)

    assert num_messages(9) <= num_messages(8) + 2


def test_what_has_no_sequence_is_not_computed_and_holds_no_blocks() -> None:
    world = world_of(max_sequences=2)
    for program in (1, 2, 3):
        ask(world, program, LONG)
    steps(world, 5)
    rows = {row.program: row for row in world.controller.processes()}
    assert rows[1].num_device_blocks
    assert rows[2].num_device_blocks
    assert rows[3].num_device_blocks == 0
    assert rows[3].num_prefilled_tokens == 0
    world.run()


# -- who makes way ---------------------------------------------------------------------------------


def test_a_tenant_without_a_sequence_takes_one_of_a_tenant_with_all() -> None:
    world = world_of(max_sequences=4)
    greedy = [ask(world, program, LONG, tenant="a") for program in range(1, 7)]
    steps(world, 30)
    late = ask(world, 7, SHORT, tenant="b")
    run_until(world, late)
    assert all(outcome.status == "pending" for outcome in greedy)
    assert sum(preemptions(world).values()) == 1, "one made way, for a share and not for a race"
    world.run()
    assert late.tokens == answer(7, SHORT)
    for program, outcome in enumerate(greedy, 1):
        assert outcome.tokens == answer(program, LONG), "nobody notices but by the clock"


@pytest.mark.parametrize(("weight", "num_moved"), [(1.0, 2), (3.0, 3)])
def test_tenants_have_sequences_by_weight(weight: float, num_moved: int) -> None:
    tenants = (TenantConfig(TenantId("b"), weight=weight),)
    world = world_of(max_sequences=4, tenants=tenants)
    for program in range(1, 9):
        ask(world, program, LONG, tenant="a" if program <= 4 else "b")
        steps(world, 8)
    steps(world, 40)
    running = world.controller.processes()
    assert sum(row.num_preemptions for row in running if row.tenant == "a") == num_moved
    world.run()
    assert sum(preemptions(world).values()) == num_moved, "what is fair is not moved again"


def test_nobody_makes_way_for_a_tie() -> None:
    world = world_of(max_sequences=2)
    first = [ask(world, program, LONG) for program in (1, 2)]
    steps(world, 30)
    late = ask(world, 3, SHORT)
    run_until(world, first[0])
    assert late.status == "pending"
    world.run()
    assert sum(preemptions(world).values()) == 0


@pytest.mark.parametrize(("scope", "num_displaced"), [("tenant", 0), ("node", 1)])
def test_a_priority_counts_within_its_tenant_or_as_configured(
    scope: Any, num_displaced: int
) -> None:
    """Tenants a and b have one of two sequences each, and b asks for two that are urgent."""
    world = world_of(max_sequences=2, priority_scope=scope)
    of_a = ask(world, 1, LONG, tenant="a")
    ask(world, 2, LONG, tenant="b")
    steps(world, 30)
    urgent = [ask(world, program, 30, tenant="b", priority=5) for program in (3, 4)]
    for outcome in urgent:
        run_until(world, outcome)
    assert of_a.status == "pending"
    assert preemptions(world) == {1: num_displaced, 2: 1, 3: 0, 4: 0}
    world.run()
    assert of_a.tokens == answer(1, LONG)


def test_a_priority_does_not_go_before_other_tenants_prompts() -> None:
    """Of two prompts that wait, the tenant's that has had less goes first."""
    world = world_of(max_sequences=8, max_batch_tokens=8, run_ahead=False)
    ask(world, 1, 1, tenant="a")
    world.run()
    urgent = [ask(world, program, 1, tenant="a", priority=9) for program in (2, 3, 4, 5)]
    calm = ask(world, 6, 1, tenant="b")
    while calm.status == "pending":
        steps(world, 1)
    assert urgent[-1].status == "pending"
    world.run()


def test_what_was_just_opened_keeps_its_sequence_for_a_while() -> None:
    world = world_of(max_sequences=1, run_ahead=False)
    low = ask(world, 1, LONG)
    steps(world, 2)
    ask(world, 2, SHORT, priority=1)
    while preemptions(world)[1] == 0:
        steps(world, 1)
    num_history = len(prompt(1)) + len(low.tokens)
    assert len(low.tokens) == MIN_TOKENS + num_history // HISTORY_PER_TOKEN
    world.run()
    assert low.tokens == answer(1, LONG)


def test_a_priority_that_is_set_later_reorders_what_waits() -> None:
    world = world_of(max_sequences=1)
    running = ask(world, 1, 60)
    steps(world, 3)
    first, second = ask(world, 2, SHORT), ask(world, 3, SHORT)
    event = Called(
        time_s=world.harness.now_s, program=ProgramId(3), call=SetQueuePriority(QueueId(1), 1)
    )
    world.harness.post(event)
    run_until(world, second)
    assert (running.status, first.status) == ("pending", "pending")
    world.run()


def test_round_robin_takes_turns_with_sequences() -> None:
    world = world_of(max_sequences=1, policy=RoundRobin(turn_tokens=64))
    outcomes = [ask(world, program, LONG) for program in (1, 2)]
    while not all(outcome.tokens for outcome in outcomes):
        steps(world, 1)
    assert [outcome.status for outcome in outcomes] == ["pending", "pending"]
    world.run()
    assert min(preemptions(world).values()) >= 1
    for program, outcome in enumerate(outcomes, 1):
        assert outcome.tokens == answer(program, LONG)


# -- a policy with queues, quanta, demotion and promotion ------------------------------------------


def plas(beta: float = 4.0) -> LevelQueues:
    return ProgramAttainedService(LevelsConfig(thresholds=(16, 80), beta=beta))


def test_a_short_program_overtakes_a_long_one_under_a_policy_with_levels() -> None:
    world = world_of(max_sequences=1, policy=plas())
    long = ask(world, 1, LONG)
    steps(world, 40)
    short = ask(world, 2, SHORT)
    run_until(world, short)
    assert long.status == "pending"
    assert preemptions(world) == {1: 1, 2: 0}
    world.run()
    assert long.tokens == answer(1, LONG)
    assert short.tokens == answer(2, SHORT)


def test_memory_follows_the_policy_too() -> None:
    """There are sequences enough, but the long answer holds what the short one needs."""
    world = world_of(policy=plas(), num_blocks=20, num_host_blocks=64, output_share=1.0)
    long = ask(world, 1, 60)
    other = ask(world, 2, 60)
    steps(world, 40)
    short = ask(world, 3, SHORT)
    run_until(world, short)
    assert (long.status, other.status) == ("pending", "pending")
    world.run()
    assert long.tokens == answer(1, 60)
    assert other.tokens == answer(2, 60)
    assert short.tokens == answer(3, SHORT)


def test_what_a_program_was_served_before_places_its_next_call() -> None:
    world = world_of(max_sequences=1, policy=plas())
    world.program(1)
    world.do(1, world.alloc(range(30)), world.decode(range(30), prompt(1), 60))
    running = ask(world, 9, LONG)
    steps(world, 2)
    old = world.issue(1, world.alloc(range(30, 60)), world.decode(range(30, 60), [7], SHORT))[1]
    new = ask(world, 2, SHORT)
    run_until(world, new)
    assert old.status == "pending"
    world.run()
    assert running.tokens == answer(9, LONG)


def test_who_waits_too_long_is_promoted() -> None:
    world = world_of(max_sequences=1, policy=plas(beta=2.0))
    long = ask(world, 1, 60)
    steps(world, 30)
    shorts = []
    for program in range(2, 40):
        if long.status != "pending":
            break
        shorts.append(ask(world, program, 12))
        run_until(world, shorts[-1])
    assert long.status == "done", "a stream of short programs does not hold it up for ever"


def test_a_scope_that_is_unknown_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose 'tenant' or 'node'"):
        SchedulerConfig(priority_scope="galaxy")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="choose 0 to 1"):
        SchedulerConfig(output_share=1.5)
