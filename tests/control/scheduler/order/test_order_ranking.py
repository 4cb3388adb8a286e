"""What a policy with state is told of ends: each command's, then its program's, once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from control_world import World

from quire.control import Controller
from quire.core.events import ProgramEnded
from quire.core.ids import ProgramId
from quire.core.policy import ReadyCommand
from quire.core.scheduler_config import SchedulerConfig


class Told:
    """A policy that writes down what ends, and when."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, float]] = []

    @property
    def name(self) -> str:
        return "told"

    @property
    def keeps_state(self) -> bool:
        return True

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        return (0.0, command.arrival_s)

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None: ...

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None: ...

    def on_ended(self, command: ReadyCommand, now_s: float) -> None:
        self.told.append(("command", command.command, now_s))

    def on_program_ended(self, program: ProgramId, now_s: float) -> None:
        self.told.append(("program", program, now_s))

    def on_capacity(self, num_sequences: int) -> None: ...

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        return ()


@pytest.fixture
def policy() -> Told:
    return Told()


@pytest.fixture
def world(policy: Told) -> World:
    world = World(controller=Controller(SchedulerConfig(), policy=policy))
    world.program(7)
    world.issue(7, world.alloc(range(4)))
    return world


def end(world: World) -> None:
    world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(7)))


def test_a_program_that_ends_without_a_command_is_told_at_once(world: World, policy: Told) -> None:
    decode = world.do(7, world.decode(range(4), [1, 2], 3))[0]
    assert [one[:2] for one in policy.told] == [("command", decode.command.id)]
    end(world)
    assert policy.told[1:] == [("program", 7, world.harness.now_s)]


def test_a_program_that_ends_with_a_command_in_flight_is_told_behind_it(
    world: World, policy: Told
) -> None:
    decode = world.issue(7, world.decode(range(4), [1, 2], 3))[0]
    end(world)
    world.run()
    assert [one[:2] for one in policy.told] == [("command", decode.command.id), ("program", 7)]
