"""The actions that the harness carries out, and its checks. Control is a list of actions here."""

from __future__ import annotations

import pytest

from quire.core.actions import Action, Deliver, Dispatch, Fail, SetTimer, Terminate
from quire.core.batch import Batch
from quire.core.commands import AllocPages, GetNextDist
from quire.core.errors import ErrorRecord
from quire.core.events import BatchCompleted, EngineDown, EngineUp, Event, Tick
from quire.core.ids import CommandId, EmbedId, EngineId, PageId, ProgramId, QueueId
from quire.testing import ControlHarness, FakeEngine, NoProgress, ProtocolViolation, StepTime

ENGINE, PROGRAM, QUEUE = EngineId("fake"), ProgramId(1), QueueId(1)
ALLOC = AllocPages(id=CommandId(1), pages=[PageId(1)])
DIST = GetNextDist(id=CommandId(2), embeds=[EmbedId(1)])


class ListControl:
    """Answers the next event with the actions in ``next``, which a test sets."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.next: list[list[Action]] = []
        self.num_checks = 0

    def handle(self, event: Event) -> list[Action]:
        self.events.append(event)
        return self.next.pop(0) if self.next else []

    def check_invariants(self) -> None:
        self.num_checks += 1


@pytest.fixture
def control() -> ListControl:
    return ListControl()


@pytest.fixture
def harness(control: ListControl) -> ControlHarness:
    engine = FakeEngine(step_time=StepTime(base_s=0.5, per_token_s=0.0))
    return ControlHarness(control, {ENGINE: engine})


def dispatch(step: int) -> Dispatch:
    return Dispatch(engine=ENGINE, batch=Batch(serial=step))


def done(command: CommandId) -> Deliver:
    return Deliver(program=PROGRAM, command=command)


def failed(command: CommandId, code: str = "capacity") -> Fail:
    return Fail(program=PROGRAM, command=command, error=ErrorRecord(code, "text"))


def test_engines_come_up_and_messages_wait(control: ListControl, harness: ControlHarness) -> None:
    assert isinstance(control.events[0], EngineUp)
    control.next = [[dispatch(0), dispatch(1)]]
    harness.issue(PROGRAM, QUEUE, ALLOC)
    assert harness.num_in_flight(ENGINE) == 2
    assert harness.now_s == 0.0
    assert harness.step_engine(ENGINE)
    completed = control.events[-1]
    assert isinstance(completed, BatchCompleted)
    assert (completed.result.serial, completed.time_s) == (0, 0.5)
    assert harness.run_until_idle() == 1
    assert not harness.step_engine(ENGINE)
    assert control.num_checks == len(control.events)


def test_outcomes_fill(control: ListControl, harness: ControlHarness) -> None:
    control.next = [[done(ALLOC.id)], [failed(DIST.id, "program_cancelled")]]
    (alloc,) = harness.issue(PROGRAM, QUEUE, ALLOC)
    (dist,) = harness.issue(PROGRAM, QUEUE, DIST)
    assert (alloc.status, dist.status) == ("done", "cancelled")
    assert harness.pending() == []


@pytest.mark.parametrize(
    "answer", [done(ALLOC.id), failed(ALLOC.id), done(CommandId(77))], ids=["done", "fail", "stray"]
)
def test_a_second_answer_is_noticed(
    control: ListControl, harness: ControlHarness, answer: Action
) -> None:
    control.next = [[done(ALLOC.id), answer]]
    with pytest.raises(AssertionError, match="an answer to"):
        harness.issue(PROGRAM, QUEUE, ALLOC)


def test_termination_before_the_answers_is_noticed(
    control: ListControl, harness: ControlHarness
) -> None:
    error = ErrorRecord("program_terminated", "text")
    control.next = [[], [Terminate(program=PROGRAM, error=error)]]
    harness.issue(PROGRAM, QUEUE, ALLOC)
    with pytest.raises(AssertionError, match="is terminated before"):
        harness.post(Tick(time_s=0.0))


def test_timers_fire_only_for_pending_commands(
    control: ListControl, harness: ControlHarness
) -> None:
    control.next = [[SetTimer(at_s=9.0)]]
    harness.post(Tick(time_s=0.0))
    assert not harness.can_step
    control.next = [[], [done(ALLOC.id)]]
    harness.issue(PROGRAM, QUEUE, ALLOC)
    assert harness.run_until_idle() == 1
    assert harness.now_s == 9.0


def test_a_bound_on_progress(control: ListControl, harness: ControlHarness) -> None:
    control.next = [[dispatch(step)] for step in range(20)]
    harness.issue(PROGRAM, QUEUE, ALLOC)
    with pytest.raises(NoProgress, match="after 5 steps"):
        harness.run_until_idle(5)


def test_a_crash_becomes_an_engine_down(control: ListControl, harness: ControlHarness) -> None:
    harness.engines[ENGINE].crash_at(0)
    control.next = [[dispatch(0), dispatch(1)]]
    harness.issue(PROGRAM, QUEUE, ALLOC)
    assert harness.step_engine(ENGINE)
    down = control.events[-1]
    assert isinstance(down, EngineDown)
    assert "injected crash at message 0" in down.error.message
    assert harness.num_in_flight(ENGINE) == 0
    harness.start_engine(ENGINE, FakeEngine())
    assert isinstance(control.events[-1], EngineUp)


def test_a_broken_contract_surfaces(control: ListControl, harness: ControlHarness) -> None:
    control.next = [[dispatch(0), dispatch(2)]]
    harness.issue(PROGRAM, QUEUE, ALLOC)
    harness.step_engine(ENGINE)
    with pytest.raises(ProtocolViolation, match="arrives where"):
        harness.step_engine(ENGINE)


def test_dispatch_to_a_lost_engine_is_noticed(
    control: ListControl, harness: ControlHarness
) -> None:
    harness.lose_engine(ENGINE)
    control.next = [[dispatch(0)]]
    with pytest.raises(AssertionError, match="which is down"):
        harness.issue(PROGRAM, QUEUE, ALLOC)
