"""``PolicySuite`` and ``DispatchPolicySuite``: requirements on every scheduling policy."""

from __future__ import annotations

import pickle
from math import isfinite

from quire.control.scheduler.order.requests import RequestOrder
from quire.core.ids import CommandId, ProgramId, QueueId, TenantId, ThreadId
from quire.core.policy import DispatchPolicy, Policy, ReadyCommand, ServiceFigures, StagedPolicy


def ready(
    command: int,
    *,
    program: int = 1,
    thread: int = 0,
    arrival_s: float = 0.0,
    service_tokens: int = 0,
    depth: int = 0,
    invocation: int = 0,
    remaining_us: int = 0,
    family_figures: ServiceFigures | None = None,
    program_figures: ServiceFigures | None = None,
    thread_figures: ServiceFigures | None = None,
) -> ReadyCommand:
    """A command that could be scheduled."""
    return ReadyCommand(
        program=ProgramId(program),
        tenant=TenantId("default"),
        thread=ThreadId(thread),
        queue=QueueId(1),
        command=CommandId(command),
        priority=0,
        depth=depth,
        invocation=invocation,
        remaining_us=remaining_us,
        arrival_s=arrival_s,
        ready_s=arrival_s,
        service_tokens=service_tokens,
        num_tokens_next=1,
        family=ProgramId(program),
        family_figures=family_figures or ServiceFigures(arrival_s=arrival_s),
        program_figures=program_figures or ServiceFigures(arrival_s=arrival_s),
        thread_figures=thread_figures or ServiceFigures(arrival_s=arrival_s),
    )


class PolicySuite:
    """Subclass it, define how to make the policy, let pytest collect it."""

    def make_policy(self) -> Policy:
        raise NotImplementedError("say how to make the policy under test")

    def test_is_a_policy(self) -> None:
        policy = self.make_policy()
        assert isinstance(policy, Policy)
        assert policy.name == self.make_policy().name

    def test_keys_are_comparable_and_repeatable(self) -> None:
        """Any mix of commands can be sorted, and computing keys does not change the order."""
        policy = self.make_policy()
        commands = [ready(i, program=i % 3, arrival_s=i * 0.1) for i in range(9)]
        for command in commands:
            policy.on_arrival(command, command.arrival_s)
        keys = [policy.key(command) for command in commands]
        assert sorted(keys) == sorted(keys, key=tuple)
        assert len({len(key) for key in keys}) == 1
        assert keys[0], "a key begins with the command's level"
        assert all(isinstance(part, int | float) for key in keys for part in key)
        assert [policy.key(command) for command in commands] == keys

    def test_a_key_changes_only_when_its_command_is_concerned(self) -> None:
        """Other commands, of this and other programs, arrive, are served and end; time passes. The
        controller's sorted queues rely on unchanged keys."""
        policy = self.make_policy()
        commands = [ready(i, program=1 + i % 3, thread=i % 2, arrival_s=0.0) for i in range(12)]
        for command in commands:
            policy.on_arrival(command, 0.0)
        for turn in range(1, 400):
            now_s = 0.5 * turn
            named = {command.command for command in policy.on_time(now_s)}
            before = {c.command: policy.key(c) for c in commands}
            served = commands[turn % 5]
            _serve(policy, served, 1 + 37 * turn % 50, 0.25, now_s)
            other = ready(100 + turn, program=1 + turn % 4, arrival_s=now_s)
            policy.on_arrival(other, now_s)
            _serve(policy, other, 40, 0.5, now_s)
            policy.on_ended(other, now_s)
            after = {c.command: policy.key(c) for c in commands}
            changed = {number for number in after if after[number] != before[number]}
            assert changed <= {served.command}, "a key changed that nobody was told of"
            unnamed = [c for c in commands if c.command not in named]
            later = {c.command for c in policy.on_time(now_s + 0.4)}
            for command in unnamed:
                if command.command not in later:
                    assert policy.key(command) == after[command.command]

    def test_what_ends_leaves_nothing_behind(self) -> None:
        """The policy forgets commands and programs that have ended, however many there were. What
        it has learned of the last ones may stay, up to a bound that they reach here."""

        def size(num_programs: int) -> int:
            policy = self.make_policy()
            for number in range(num_programs):
                now_s = float(number)
                command = ready(1, program=number, arrival_s=now_s, invocation=1 + number)
                policy.on_arrival(command, now_s)
                _serve(policy, command, 100, 0.5, now_s)
                policy.on_time(now_s)
                policy.on_ended(command, now_s)
                policy.on_program_ended(ProgramId(number), now_s)
            return len(pickle.dumps(policy))

        assert size(4000) < 1.5 * size(2000)

    def test_programs_may_end_without_a_command(self) -> None:
        policy = self.make_policy()
        policy.on_program_ended(ProgramId(99), 0.0)
        command = ready(1)
        policy.on_arrival(command, 0.0)
        policy.on_ended(command, 1.0)
        policy.on_program_ended(command.program, 1.0)

    def test_a_stage_never_changes(self) -> None:
        """If the policy has stages: a command's bucket relies on it."""
        policy = self.make_policy()
        if not isinstance(policy, StagedPolicy):
            return
        commands = [ready(i, program=i % 3, depth=i, remaining_us=7 * i) for i in range(9)]
        for command in commands:
            policy.on_arrival(command, 0.0)
        stages = [policy.stage(command) for command in commands]
        assert all(isfinite(stage) for stage in stages)
        for turn in range(1, 50):
            _serve(policy, commands[turn % 9], 100, 0.5, float(turn))
            policy.on_time(float(turn))
        assert [policy.stage(command) for command in commands] == stages

    def test_a_deep_program_does_not_take_every_batch(self) -> None:
        """A program has one old command, and an endless stream of new ones that are deeper. So a
        command of a program without a graph, which arrived between them, waits with them."""
        policy = self.make_policy()
        order = RequestOrder(policy, {})
        order.add(ready(0, program=1, remaining_us=1), 0.0)
        other = ready(1, program=2, arrival_s=0.5)
        order.add(other, 0.5)
        for turn in range(2, 2000):
            now_s = float(turn)
            more = ready(turn, arrival_s=now_s, depth=turn, invocation=turn, remaining_us=turn)
            order.add(more, now_s)
            (taken,) = order.take(1, now_s)
            if taken is other:
                return
            _serve(policy, taken, 1, 0.01, now_s)
            order.end(taken, now_s)
            for figures in (other.family_figures, other.program_figures, other.thread_figures):
                figures.waiting_s += 1.0
        raise AssertionError(f"{policy.name}: a command waited for 2000 others")

    def test_nobody_starves(self) -> None:
        """With one command served at a time, an old command runs despite an endless stream of new
        ones."""
        self._outlast_newcomers(num_tokens_before=0)

    def test_who_was_served_much_does_not_starve(self) -> None:
        """A command with a service of ten thousand tokens runs, too, when the others arrive."""
        self._outlast_newcomers(num_tokens_before=10_000)

    def _outlast_newcomers(self, num_tokens_before: int) -> None:
        policy = self.make_policy()
        old = ready(0, program=1, arrival_s=0.0)
        policy.on_arrival(old, 0.0)
        for _ in range(0, num_tokens_before, 50):
            _serve(policy, old, 50, 0.5, 0.0)
        for turn in range(1, 2000):
            now_s = float(turn)
            young = ready(turn, program=turn + 1, arrival_s=now_s)
            policy.on_arrival(young, now_s)
            policy.on_time(now_s)
            first = min((old, young), key=policy.key)
            _serve(policy, first, 1, 0.01, now_s)
            policy.on_ended(young, now_s)
            policy.on_program_ended(young.program, now_s)
            if first is old:
                return
            old.family_figures.waiting_s += 1.0
            old.program_figures.waiting_s += 1.0
            old.thread_figures.waiting_s += 1.0
        raise AssertionError(f"{policy.name}: a command waited for 2000 others")


def _serve(
    policy: Policy, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
) -> None:
    """Notifies the policy as control does: the figures are updated first."""
    command.service_tokens += num_tokens
    command.service_s += service_s
    for figures in (command.family_figures, command.program_figures, command.thread_figures):
        figures.service_tokens += num_tokens
        figures.service_s += service_s
    policy.on_served(command, num_tokens, service_s, now_s)


class DispatchPolicySuite:
    """Subclass it, define how to make the policy, let pytest collect it."""

    def make_policy(self) -> DispatchPolicy:
        raise NotImplementedError("say how to make the dispatch policy under test")

    def test_is_a_dispatch_policy(self) -> None:
        policy = self.make_policy()
        assert isinstance(policy, DispatchPolicy)
        assert policy.max_commands is None or policy.max_commands >= 1

    def test_ready_commands_are_dispatched_in_the_end(self) -> None:
        """With ready work and an idle engine, following the policy's timers leads to a dispatch."""
        for num_ready in (1, 2, 100):
            now_s, policy = 5.0, self.make_policy()
            for _ in range(100):
                at_s = policy.ready_at_s(num_ready, 5.0, now_s)
                if at_s is None:
                    # the policy waits for more commands (K-only), so add them until it dispatches
                    num_ready += 1
                elif at_s <= now_s:
                    break
                else:
                    now_s = at_s
            else:
                raise AssertionError(f"{policy.name}: {num_ready} ready commands never go out")

    def test_timers_lie_ahead_and_do_not_move_away(self) -> None:
        policy = self.make_policy()
        first = policy.ready_at_s(1, 5.0, 5.0)
        if first is not None and first > 5.0:
            later = policy.ready_at_s(1, 5.0, (5.0 + first) / 2)
            assert later is not None
            assert later <= first
