"""What a node served is played again: the same calls, lengths, waits and texts in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from quire.control import Controller
from quire.core.actions import Action
from quire.core.errors import InvalidArgument
from quire.core.events import Event
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.arrivals import Arrivals
from quire.simulation.engines import EngineSpec
from quire.simulation.outcomes import ProgramOutcome
from quire.simulation.trial import SimulationRun
from quire.simulation.workloads import CallPlan, ProgramPlan, create_workload, draw_programs
from quire.simulation.workloads.recorded import RecordedLoad, RecordedPrograms

Observe = Callable[[Event, Sequence[Action]], None]
ENGINES = EngineSpec(max_sequences=4)


class Watched:
    """A controller whose events are told to ``observe``."""

    def __init__(self, controller: Controller, observe: Observe) -> None:
        self._controller = controller
        self._observe = observe

    def handle(self, event: Event) -> list[Action]:
        actions = self._controller.handle(event)
        self._observe(event, actions)
        return actions

    def check_invariants(self) -> None:
        self._controller.check_invariants()


def play(
    monkeypatch: pytest.MonkeyPatch,
    plans: Sequence[ProgramPlan],
    times_s: Sequence[float],
    observe: Observe,
) -> tuple[ProgramOutcome, ...]:
    def made(scheduler: SchedulerConfig, **rest: Any) -> Watched:
        return Watched(Controller(scheduler, **rest), observe)

    monkeypatch.setattr("quire.simulation.trial.Controller", made)
    return SimulationRun(plans, times_s, ENGINES, SchedulerConfig()).run().outcomes


def recorded(
    monkeypatch: pytest.MonkeyPatch, plans: Sequence[ProgramPlan]
) -> tuple[RecordedLoad, tuple[ProgramOutcome, ...]]:
    programs = RecordedPrograms()
    times_s = Arrivals(rate=0.5).times_s(len(plans), 1)
    outcomes = play(monkeypatch, plans, times_s, programs.observe)
    return programs.load(), outcomes


def functions() -> list[ProgramPlan]:
    """Calls that begin with one text."""
    return draw_programs(create_workload("bfcl"), 3, 2)


def agents() -> list[ProgramPlan]:
    """Chats with tools, of which the second launches a program, and goes on behind it."""
    first = CallPlan(40, 12)
    second = CallPlan(9, 20, extends=0, after=(0,), wait_s=1.5)
    alone = (first, second, CallPlan(5, 8, extends=1, after=(1,), wait_s=0.25))
    launched = CallPlan(30, 6, after=(0,), wait_s=0.5, thread=1, member=1)
    behind = CallPlan(7, 9, extends=0, after=(0, 1), wait_s=2.0)
    return [ProgramPlan("agent", alone), ProgramPlan("agent", (first, launched, behind))]


def side_by_side() -> list[ProgramPlan]:
    """A program that launches another one during its call, and waits for it at its end."""
    launched = CallPlan(30, 300, wait_s=0.5, thread=1, member=1)
    return [ProgramPlan("agent", (CallPlan(40, 200), launched))]


@pytest.mark.parametrize("drawn", [functions, agents, side_by_side])
def test_a_load_that_is_played_again_takes_as_long(
    monkeypatch: pytest.MonkeyPatch, drawn: Callable[[], list[ProgramPlan]]
) -> None:
    plans = drawn()
    load, first = recorded(monkeypatch, plans)
    for again, plan in zip(load.plans, plans, strict=True):
        assert again.kind == plan.kind
        assert again.prompt_lengths == plan.prompt_lengths
        for field in ("num_output", "wait_s", "member", "extends"):
            expected = [getattr(call, field) for call in plan.calls]
            assert [getattr(call, field) for call in again.calls] == pytest.approx(expected)
    second = play(monkeypatch, load.plans, load.times_s, lambda *_: None)
    for one, other in zip(first, second, strict=True):
        assert other.response_s == pytest.approx(one.response_s)
        assert other.num_prefilled_tokens == one.num_prefilled_tokens
    assert load.num_left_out == 0


def test_a_log_that_is_cut_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = draw_programs(create_workload("bfcl"), 2, 1)
    programs = RecordedPrograms()
    seen = 0

    def observe(event: Event, actions: Sequence[Action]) -> None:
        nonlocal seen
        seen += 1
        if seen < 12:
            programs.observe(event, actions)

    play(monkeypatch, plans, [0.0, 0.0], observe)
    with pytest.raises(InvalidArgument, match="cut off: 2 of its 2 calls have no end"):
        programs.load()


def test_a_log_without_calls_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no call that generated anything"):
        RecordedPrograms().load()
