"""The shipped policies pass the suites for policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from quire.control.policies import POLICIES, create_policy
from quire.control.scheduler.dispatch import Adaptive
from quire.core.ids import CommandId, ProgramId
from quire.core.policy import DispatchPolicy, Policy, ReadyCommand, ServiceFigures
from quire.testing.conformance import DispatchPolicySuite, PolicySuite
from quire.testing.conformance.policy import ready


@pytest.fixture(params=sorted(POLICIES))
def policy_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestPolicies(PolicySuite):
    @pytest.fixture(autouse=True)
    def choose(self, policy_name: str) -> None:
        self.policy_name = policy_name

    def make_policy(self) -> Policy:
        return create_policy(self.policy_name)


class TestDispatchPolicies(DispatchPolicySuite):
    def make_policy(self) -> DispatchPolicy:
        return Adaptive()


class _Stateless:
    keeps_state = False

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None: ...

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None: ...

    def on_ended(self, command: ReadyCommand, now_s: float) -> None: ...

    def on_program_ended(self, program: ProgramId, now_s: float) -> None: ...

    def on_capacity(self, num_sequences: int) -> None: ...

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        return ()


class _NewestFirst(_Stateless):
    """A policy under which old commands starve: the suite must notice."""

    name = "newest"

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        return (0, -command.arrival_s)


class _LeastServedProgram(_Stateless):
    """A policy whose keys depend on other commands of the program, without a notification."""

    name = "least_served"

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        return (command.program_figures.service_s, command.arrival_s)


class _Hoarder(_NewestFirst):
    """A policy that never forgets commands that have ended."""

    def __init__(self) -> None:
        self.seen: list[CommandId] = []

    def on_ended(self, command: ReadyCommand, now_s: float) -> None:
        self.seen.append(command.command)


def _suite_of(policy: Callable[[], Policy]) -> PolicySuite:
    suite = PolicySuite()
    suite.make_policy = policy  # type: ignore[method-assign]
    return suite


def test_the_suite_notices_starvation() -> None:
    with pytest.raises(AssertionError, match="waited for 2000 others"):
        _suite_of(_NewestFirst).test_nobody_starves()
    assert ready(3).command == 3


def test_the_suite_notices_a_key_that_changes_by_itself() -> None:
    figures = ServiceFigures()

    def shared(*arguments: Any, **fields: Any) -> ReadyCommand:
        return ready(*arguments, **fields, program_figures=figures)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quire.testing.conformance.policy.ready", shared)
        with pytest.raises(AssertionError, match="nobody was told of"):
            _suite_of(_LeastServedProgram).test_a_key_changes_only_when_its_command_is_concerned()


def test_the_suite_notices_a_policy_that_remembers_ended_commands() -> None:
    with pytest.raises(AssertionError):
        _suite_of(_Hoarder).test_what_ends_leaves_nothing_behind()


class _Never:
    name = "never"
    max_commands = None

    def ready_at_s(self, num_ready: int, oldest_ready_s: float, now_s: float) -> float | None:
        return now_s + 1


def test_the_suite_notices_a_dispatch_that_never_comes() -> None:
    suite = DispatchPolicySuite()
    suite.make_policy = _Never  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="never go out"):
        suite.test_ready_commands_are_dispatched_in_the_end()
