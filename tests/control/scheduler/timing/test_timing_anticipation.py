"""Waiting a moment for programs that were just answered, so that their steps stand together."""

from __future__ import annotations

from typing import Any

import pytest
from control_world import ENGINE, World, queue_alone

from benchmarks.pie.dispatch_policies import Eager, KOnly, TOnly
from quire.control.scheduler.timing.anticipation import Anticipation
from quire.core import commands as c
from quire.core.calls import CloseQueue, Issue
from quire.core.events import Called
from quire.core.ids import CommandId, ProgramId, QueueId
from quire.core.policy import DispatchPolicy

PAGES = range(1, 5)
PAUSE_S = 0.0001
"""Between an answer and the program's next commands; a message of the fake engine takes longer."""


class Steppers:
    """Programs that each run one token at a time, behind what is in their pages."""

    def __init__(self, world: World, num_programs: int) -> None:
        self.world = world
        self.position = dict.fromkeys(range(1, num_programs + 1), 0)
        for program in self.position:
            world.program(program)
            world.do(program, world.alloc(PAGES), world.alloc_embeds([1]))
        world.harness.dispatched.clear()

    def step(self, *programs: int) -> None:
        """The next token of each, asked for at the same moment."""
        world = self.world
        for program in programs:
            at = self.position[program]
            self.position[program] = at + 1
            world.issue(
                program,
                world.embed([1], [3], at),
                world.forward(PAGES, [1], PAGES, [1]),
                world.sample([1], at + 1),
            )

    @property
    def rows(self) -> list[int]:
        """Forward rows of each message so far."""
        return [
            0 if batch.forward is None else len(batch.forward.tables)
            for batch in (dispatch.batch for dispatch in self.world.harness.dispatched)
        ]

    def pass_time(self, seconds: float) -> None:
        self.world.harness.clock.advance(seconds)


def out_of_step(**config: Any) -> Steppers:
    """Program 1 in flight, and known to be quick; program 2 waiting for the message behind."""
    steppers = Steppers(World(config=config), 2)
    for _ in range(2):
        steppers.pass_time(PAUSE_S)
        steppers.step(1)
        steppers.world.harness.step_engine(ENGINE)
    steppers.pass_time(PAUSE_S)
    steppers.step(1)
    steppers.step(2)
    steppers.world.harness.dispatched.clear()
    return steppers


def test_programs_that_take_turns_are_brought_into_step() -> None:
    steppers = out_of_step()
    harness = steppers.world.harness
    harness.step_engine(ENGINE)  # program 1 is answered, program 2 is ready
    assert steppers.rows == [], "the engine waits for program 1"
    steppers.pass_time(PAUSE_S)
    steppers.step(1)
    assert steppers.rows == [2], "and goes on with both at once when it has come"
    for _ in range(3):
        harness.step_engine(ENGINE)
        steppers.pass_time(PAUSE_S)
        steppers.step(1)
        steppers.pass_time(PAUSE_S)
        steppers.step(2)
    assert steppers.rows == [2, 1, 2, 2], "once program 2 is known to be quick too"


def test_who_does_not_come_is_waited_for_once() -> None:
    steppers = out_of_step()
    harness = steppers.world.harness
    harness.step_engine(ENGINE)
    assert steppers.rows == []
    harness.fire_timer()
    assert steppers.rows == [1], "program 2 alone, when program 1 is late"
    harness.step_engine(ENGINE)
    steppers.step(1)  # after more than its usual pause
    harness.step_engine(ENGINE)
    steppers.step(2)
    assert steppers.rows[-1] == 1, "nobody waits for program 1 again"


def test_without_patience_nobody_is_waited_for() -> None:
    steppers = out_of_step(patience=0.0)
    steppers.world.harness.step_engine(ENGINE)
    assert steppers.rows == [1]


@pytest.mark.parametrize("dispatch", [Eager(), KOnly(8), TOnly(0.005)], ids=lambda one: one.name)
def test_the_baselines_wait_for_nobody(dispatch: DispatchPolicy) -> None:
    world = World(config={"dispatch": dispatch})
    scheduler = world.controller._schedulers[ENGINE]
    scheduler.anticipation.observe(1.0)
    queue = queue_alone(1)
    scheduler.anticipation.answered(queue, 0.0)
    scheduler.anticipation.issued(queue, 0.01)
    scheduler.anticipation.answered(queue, 0.02)
    assert scheduler.anticipation.wait_until_s(0.02) is None


def test_a_slow_queue_is_not_expected_and_a_closed_one_is_forgotten() -> None:
    slow, quick = queue_alone(1), queue_alone(2)
    anticipation = Anticipation(0.25)
    anticipation.observe(0.1)
    for queue, pause_s in ((slow, 0.03), (quick, 0.01)):
        anticipation.answered(queue, 1.0)
        anticipation.issued(queue, 1.0 + pause_s)
    anticipation.answered(slow, 2.0)
    assert anticipation.wait_until_s(2.0) is None
    anticipation.answered(quick, 2.0)
    assert anticipation.wait_until_s(2.0) == pytest.approx(2.02)
    anticipation.forget(quick)
    assert anticipation.wait_until_s(2.0) is None


def test_a_queue_that_is_closed_in_flight_is_forgotten() -> None:
    steppers = Steppers(World(), 2)
    steppers.step(1)
    harness = steppers.world.harness
    harness.call(ProgramId(1), CloseQueue(QueueId(1)))
    harness.step_engine(ENGINE)
    steppers.pass_time(1.0)
    steppers.step(2)  # asks whom to wait for
    steppers.world.run()
    anticipation = steppers.world.controller._schedulers[ENGINE].anticipation
    kept = {*anticipation._answered, *anticipation._pause_s}
    assert {queue.program.id for queue in kept} <= {ProgramId(2)}


def test_events_of_one_moment_stand_in_one_message() -> None:
    steppers = Steppers(World(), 3)
    world = steppers.world
    for program in (1, 2, 3):
        world.harness.post(
            Called(
                time_s=world.harness.now_s,
                program=ProgramId(program),
                call=Issue(
                    QueueId(1),
                    [
                        c.EmbedText(id=CommandId(1000), tokens=[3], positions=[0], embeds=[1]),
                        c.Forward(
                            id=CommandId(1001), context=[], inputs=[1], output=[1], outputs=[1]
                        ),
                    ],
                ),
                more=program < 3,
            )
        )
    assert steppers.rows == [3]


@pytest.mark.parametrize("pauses_s", [(0.1, 0.2), (0.2, 0.1)])
def test_the_slowest_of_those_that_are_expected_is_waited_for(
    pauses_s: tuple[float, float],
) -> None:
    anticipation = Anticipation(share=0.5)
    anticipation.observe(1.0)
    queues = [queue_alone(number) for number in (1, 2)]
    alone_s = []
    for queue, pause_s in zip(queues, pauses_s, strict=True):
        anticipation.answered(queue, 0.0)
        anticipation.issued(queue, pause_s)
        anticipation.answered(queue, 10.0)
        alone_s.append(anticipation.wait_until_s(10.0))
        anticipation.issued(queue, 10.0 + pause_s)
    for queue in queues:
        anticipation.answered(queue, 20.0)
    assert None not in alone_s
    assert anticipation.wait_until_s(20.0) == pytest.approx(10.0 + max(filter(None, alone_s)))
