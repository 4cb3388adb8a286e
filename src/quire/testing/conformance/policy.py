"""``PolicySuite`` and ``DispatchPolicySuite``: what every scheduling policy must do."""

from __future__ import annotations

from quire.core.ids import CommandId, ProgramId, QueueId, TenantId
from quire.core.interfaces import DispatchPolicy, Policy, ReadyCommand


def ready(
    command: int, *, program: int = 1, arrival_s: float = 0.0, service_tokens: int = 0
) -> ReadyCommand:
    """A command that could be scheduled."""
    return ReadyCommand(
        program=ProgramId(program),
        tenant=TenantId("default"),
        queue=QueueId(1),
        command=CommandId(command),
        priority=0,
        depth=0,
        arrival_s=arrival_s,
        ready_s=arrival_s,
        service_tokens=service_tokens,
        num_tokens_next=1,
    )


class PolicySuite:
    """Subclass it, say how to make the policy, let pytest collect it."""

    def make_policy(self) -> Policy:
        raise NotImplementedError("say how to make the policy under test")

    def test_is_a_policy(self) -> None:
        policy = self.make_policy()
        assert isinstance(policy, Policy)
        assert policy.name == self.make_policy().name

    def test_keys_are_comparable_and_repeatable(self) -> None:
        """Any mix of commands sorts, and looking does not change the order."""
        policy = self.make_policy()
        commands = [
            ready(i, program=i % 3, arrival_s=i * 0.1, service_tokens=7 * i % 5) for i in range(9)
        ]
        keys = [policy.key(command, 10.0) for command in commands]
        assert sorted(keys) == sorted(keys, key=tuple)
        assert len({len(key) for key in keys}) == 1
        assert all(isinstance(part, int | float) for key in keys for part in key)
        assert [policy.key(command, 10.0) for command in commands] == keys

    def test_serving_and_ending_are_accepted_in_any_order(self) -> None:
        policy = self.make_policy()
        policy.on_program_ended(ProgramId(99))
        served = ready(1)
        policy.on_served(served, 5, 1.0)
        policy.on_program_ended(served.program)
        policy.on_served(served, 5, 2.0)
        policy.key(served, 3.0)

    def test_nobody_starves(self) -> None:
        """Served one at a time, an old command runs before an endless stream of new ones ends."""
        policy = self.make_policy()
        old = ready(0, program=1, arrival_s=0.0)
        for turn in range(1, 1000):
            now_s = float(turn)
            young = ready(turn, program=turn + 1, arrival_s=now_s)
            first = min((old, young), key=lambda command: policy.key(command, now_s))
            policy.on_served(first, 1, now_s)
            policy.on_program_ended(young.program)
            if first is old:
                return
        raise AssertionError(f"{policy.name}: a command waited for 1000 others")


class DispatchPolicySuite:
    """Subclass it, say how to make the policy, let pytest collect it."""

    def make_policy(self) -> DispatchPolicy:
        raise NotImplementedError("say how to make the dispatch policy under test")

    def test_is_a_dispatch_policy(self) -> None:
        policy = self.make_policy()
        assert isinstance(policy, DispatchPolicy)
        assert policy.max_commands is None or policy.max_commands >= 1

    def test_ready_commands_are_dispatched_in_the_end(self) -> None:
        """With work ready and an idle engine, following its timers leads to a dispatch."""
        for num_ready in (1, 2, 100):
            now_s, policy = 5.0, self.make_policy()
            for _ in range(100):
                at_s = policy.ready_at_s(num_ready, 5.0, 0, now_s)
                if at_s is None:
                    # Only more commands can help (K-only); then enough of them must.
                    num_ready += 1
                elif at_s <= now_s:
                    break
                else:
                    now_s = at_s
            else:
                raise AssertionError(f"{policy.name}: {num_ready} ready commands never go out")

    def test_timers_lie_ahead_and_do_not_move_away(self) -> None:
        policy = self.make_policy()
        first = policy.ready_at_s(1, 5.0, 0, 5.0)
        if first is not None and first > 5.0:
            later = policy.ready_at_s(1, 5.0, 0, (5.0 + first) / 2)
            assert later is not None
            assert later <= first


__all__ = ["DispatchPolicySuite", "PolicySuite", "ready"]
