"""The shipped policies pass the suites for policies."""

from __future__ import annotations

import pytest

from quire.control.policies import POLICIES, create_policy
from quire.control.scheduler.dispatch import create_dispatch_policy
from quire.core.config import SchedulerConfig
from quire.core.interfaces import DispatchPolicy, Policy, ReadyCommand
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
    @pytest.fixture(autouse=True, params=["adaptive", "eager", "k_only", "t_only"])
    def choose(self, request: pytest.FixtureRequest) -> None:
        self.dispatch = str(request.param)

    def make_policy(self) -> DispatchPolicy:
        return create_dispatch_policy(SchedulerConfig(dispatch=self.dispatch, k=4))


class _NewestFirst:
    """Starves: the suite must notice."""

    name = "newest"
    counts_service = False

    def key(self, command: ReadyCommand, now_s: float) -> tuple[float, ...]:
        return (-command.arrival_s,)

    def on_served(self, command: ReadyCommand, num_tokens: int, now_s: float) -> None: ...

    def on_program_ended(self, program: object) -> None: ...


def test_the_suite_notices_starvation() -> None:
    suite = PolicySuite()
    suite.make_policy = _NewestFirst  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="waited for 1000 others"):
        suite.test_nobody_starves()
    assert ready(3).command == 3


class _Never:
    name = "never"
    max_commands = None

    def ready_at_s(
        self, num_ready: int, oldest_ready_s: float, num_in_flight: int, now_s: float
    ) -> float | None:
        return now_s + 1


def test_the_suite_notices_a_dispatch_that_never_comes() -> None:
    suite = DispatchPolicySuite()
    suite.make_policy = _Never  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="never go out"):
        suite.test_ready_commands_are_dispatched_in_the_end()
