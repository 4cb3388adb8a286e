"""What control knows of the step of a graph that each command serves."""

from __future__ import annotations

from collections.abc import Sequence

from control_world import World
from encoding_world import MODEL as ENCODER
from encoding_world import EncodingWorld, encode_command

from quire.control import Controller
from quire.core.calls import AskEncoder, SetQueueDepth
from quire.core.ids import ProgramId, QueueId
from quire.core.policy import GraphPlace, ReadyCommand
from quire.core.scheduler_config import SchedulerConfig


class Listening:
    """First come, first served; remembers what it is told of."""

    def __init__(self) -> None:
        self.seen: list[ReadyCommand] = []

    @property
    def name(self) -> str:
        return "listening"

    @property
    def keeps_state(self) -> bool:
        return True

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        return (0.0, command.arrival_s)

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None:
        self.seen.append(command)

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None: ...

    def on_ended(self, command: ReadyCommand, now_s: float) -> None: ...

    def on_program_ended(self, program: ProgramId, now_s: float) -> None: ...

    def on_capacity(self, num_sequences: int) -> None: ...

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        return ()

    @property
    def places(self) -> list[GraphPlace]:
        return [GraphPlace(one.depth, one.invocation, one.remaining_us) for one in self.seen]


def listening_world() -> tuple[World, Listening]:
    policy = Listening()
    return World(controller=Controller(SchedulerConfig(), policy=policy)), policy


def set_depth(world: World, depth: int, **more: int) -> None:
    world.harness.call(ProgramId(1), SetQueueDepth(QueueId(1), depth, **more))


def test_a_command_has_the_depth_that_its_queue_had_when_it_was_issued() -> None:
    world, policy = listening_world()
    world.program(queues=0)
    world.queue(1, 1, depth=5)
    world.do(1, world.alloc([1]), world.alloc_embeds([1]))
    world.issue(1, world.embed([1], [7]))
    set_depth(world, 3, invocation=2, remaining_us=40)
    world.issue(1, world.decode([1], [8, 9], max_tokens=2))
    set_depth(world, 1)
    world.run()
    assert policy.places == [GraphPlace(5), GraphPlace(3, 2, 40)]
    world.do(1, world.embed([1], [8]))
    assert policy.places[2:] == [GraphPlace(1)], "what is not said again is not known"


def test_the_depth_of_a_queue_that_is_not_there_changes_nothing() -> None:
    world, policy = listening_world()
    world.program()
    world.harness.call(ProgramId(1), SetQueueDepth(QueueId(9), 4))
    world.harness.call(ProgramId(9), SetQueueDepth(QueueId(1), 4))
    world.do(1, world.alloc_embeds([1]), world.embed([1], [7]))
    assert policy.places == [GraphPlace(0)]


def test_a_question_to_an_encoder_has_a_place_of_its_own() -> None:
    policy = Listening()
    world = EncodingWorld(policy=policy)
    program = world.program(1)
    asked = AskEncoder(ENCODER, encode_command(1, [2]), depth=3, invocation=4, remaining_us=5)
    world.harness.call(program, asked)
    world.harness.run_until_idle()
    assert policy.places == [GraphPlace(3, 4, 5)]
