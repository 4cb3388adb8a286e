"""Which decodes begin when memory is short, and that who waits costs a message nothing."""

from __future__ import annotations

from typing import Any

import pytest
from control_world import World, alone

from quire.control import Controller
from quire.control.policies import RoundRobin
from quire.core.events import ProgramEnded
from quire.core.ids import ProgramId
from quire.core.policy import ReadyCommand
from quire.core.scheduler_config import SchedulerConfig
from quire.testing.harness import CommandOutcome

OUTPUT = 30


def prompt(program: int) -> list[int]:
    return [program, *range(60, 64)]


def ask(world: World, program: int) -> CommandOutcome:
    world.program(program)
    pages = range(-(-(len(prompt(program)) + OUTPUT) // 4))
    return world.issue(program, world.alloc(pages), world.decode(pages, prompt(program), OUTPUT))[1]


def run_and_end(world: World, outcomes: dict[int, CommandOutcome]) -> None:
    """Programs end when they are answered, as requests do."""
    alive = dict(outcomes)
    while alive:
        assert world.harness.step()
        for program in [number for number, one in alive.items() if one.status == "done"]:
            del alive[program]
            world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(program)))


def crowd(output_share: float, num_programs: int = 12) -> tuple[World, dict[int, CommandOutcome]]:
    world = World(
        num_blocks=20, num_host_blocks=200, config={"output_share": output_share, "patience": 0.0}
    )
    outcomes = {program: ask(world, program) for program in range(1, num_programs + 1)}
    run_and_end(world, outcomes)
    return world, outcomes


@pytest.mark.parametrize("output_share", [0.0, 1.0])
def test_what_has_room_beside_the_others_begins(output_share: float) -> None:
    """Two of twelve decodes fit. Who expects whole answers begins no third one."""
    world, outcomes = crowd(output_share)
    for program, outcome in outcomes.items():
        assert outcome.tokens == alone(prompt(program), OUTPUT)
    assert (world.figures.num_preemptions == 0) == (output_share == 1.0)


def test_what_decodes_generate_corrects_what_is_expected() -> None:
    """All generate what they may: who expected nothing stops preempting after a while."""
    few, _ = crowd(0.0, 20)
    many, _ = crowd(0.0, 80)
    rate_at_first = few.figures.num_preemptions / 20
    rate_later = (many.figures.num_preemptions - few.figures.num_preemptions) / 60
    assert rate_later < rate_at_first / 2


def test_the_oldest_program_needs_no_room_to_begin() -> None:
    """It was idle while a younger one took the pool, and does not wait for its end."""
    config = {"output_share": 1.0, "max_steps_per_message": 1, "run_ahead": False}
    world = World(num_blocks=12, num_host_blocks=64, config=config)
    world.program(1)
    young = ask(world, 2)
    while len(young.tokens) < 8:
        assert world.harness.step()
    pages = range(9)
    old = world.issue(1, world.alloc(pages), world.decode(pages, prompt(1), OUTPUT))[1]
    while old.status == "pending":
        assert world.harness.step()
    assert young.status == "pending"
    world.run()
    assert old.tokens == alone(prompt(1), OUTPUT)
    assert young.tokens == alone(prompt(2), OUTPUT)


class _Counting:
    """Round robin that counts how often it is asked; compiled classes have no subclasses."""

    def __init__(self) -> None:
        self.num_keys = 0
        self._policy = RoundRobin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        self.num_keys += 1
        return self._policy.key(command)


@pytest.mark.parametrize("num_waiting", [10, 400])
def test_a_message_ranks_what_it_carries_and_not_what_waits(num_waiting: int) -> None:
    policy = _Counting()
    config = SchedulerConfig(max_steps_per_message=1, run_ahead=False)
    world = World(controller=Controller(config, policy=policy), num_blocks=8192, max_sequences=4)
    world.harness.shell.check = False
    for program in range(1, num_waiting + 1):
        ask(world, program)
    policy.num_keys = 0
    for _ in range(20):
        world.harness.step()
    assert 0 < policy.num_keys <= 20 * 5


def shared_crowd(first_tokens: list[int]) -> tuple[int, World]:
    """The most decodes that ran at once, of three with prompts of eight pages that differ in the
    last one; the first comes before the others. ``first_tokens``: of each."""
    world = World(
        num_blocks=16, num_host_blocks=64, config={"output_share": 1.0, "run_ahead": False}
    )
    outcomes = []
    for program, token in enumerate(first_tokens, 1):
        world.program(program)
        tokens = [token, *range(20, 50), program]
        world.issue(program, world.alloc(range(10)))
        outcomes += world.issue(program, world.decode(range(10), tokens, 6))
        if program == 1:
            while not outcomes[0].tokens:
                assert world.harness.step()
    most = 0
    while any(one.status == "pending" for one in outcomes):
        assert world.harness.step()
        most = max(most, world.figures.num_running)
    assert [len(one.tokens) for one in outcomes] == [6, 6, 6]
    return most, world


def test_what_others_hold_of_a_prompt_needs_no_room() -> None:
    """Sixteen blocks hold one prompt and an answer; of a shared one, what three need beside it."""
    assert shared_crowd([7, 8, 9])[0] == 1
    together, world = shared_crowd([7, 7, 7])
    assert together == 3
    assert world.figures.num_preemptions == 0


def test_who_takes_the_place_of_another_needs_no_room_beside_it() -> None:
    """A decode with a better rank gets the seat and the memory of an older program's."""
    config = {"output_share": 1.0, "run_ahead": False, "max_steps_per_message": 1}
    world = World(num_blocks=12, num_host_blocks=64, max_sequences=1, config=config)
    first = ask(world, 1)
    while len(first.tokens) < 8:
        assert world.harness.step()
    world.program(2, priority=5)
    pages = range(9)
    urgent = world.issue(2, world.alloc(pages), world.decode(pages, prompt(2), OUTPUT))[1]
    while urgent.status == "pending":
        assert world.harness.step()
    assert first.status == "pending"
    world.run()
    assert urgent.tokens == alone(prompt(2), OUTPUT)
    assert first.tokens == alone(prompt(1), OUTPUT)
    assert world.figures.num_preemptions == 1
