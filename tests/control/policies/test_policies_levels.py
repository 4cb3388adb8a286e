"""The policies with queues: worked examples, queues, quanta, and the bound on promotions."""

from __future__ import annotations

import pytest
from gantt import run

from quire.control.policies import (
    FirstComeFirstServed,
    LevelQueues,
    MultiLevelFeedback,
    ProgramAttainedService,
    ProgramFirstComeFirstServed,
    ThreadAttainedService,
)
from quire.core.policy import Policy, ReadyCommand, ServiceFigures
from quire.core.scheduler_config import LevelsConfig
from quire.testing.conformance import PolicySuite
from quire.testing.conformance.policy import ready

FOUR = {"A": (4, 2, 3), "B": (3, 3, 3), "C": (1, 2), "D": (4,)}
"""In the form of Autellix's Figure 2: two places, A and B long, C and D short. (The lengths of its
programs are drawn, not stated; these give the same order of the policies.)"""

SHORT_QUANTA = LevelsConfig(thresholds=(2, 3), quanta=(2, 1), beta=None)


@pytest.mark.parametrize(
    ("policy", "waited"),
    [
        (FirstComeFirstServed(), 18),
        (MultiLevelFeedback(SHORT_QUANTA), 17),
        (ProgramAttainedService(SHORT_QUANTA), 12),
        (MultiLevelFeedback(LevelsConfig(thresholds=(4,), quanta=(4,), beta=None)), 18),
    ],
    ids=["fcfs", "mlfq", "plas", "mlfq with long quanta"],
)
def test_four_programs_as_in_figure_2(policy: Policy, waited: int) -> None:
    assert run(policy, FOUR, slots=2).total_waited == waited


def test_under_plas_the_short_programs_of_figure_2_end_first() -> None:
    ended = run(ProgramAttainedService(SHORT_QUANTA), FOUR, slots=2).ended
    assert max(ended["C"], ended["D"]) < min(ended["A"], ended["B"])


TREE_AND_CHAINS = {
    "A": [(1, ()), (3, [0]), (3, [0]), (3, [0]), (1, [1, 2, 3])],
    "B": (3, 3, 3),
    "C": (3, 3, 3),
}
"""In the form of Autellix's Figure 9: A maps over three threads and reduces, B and C have one."""


def test_atlas_ends_a_program_of_several_short_threads_sooner_than_plas() -> None:
    """A's critical path is 5 of its 11 units. Where all that it was served counts, its last call
    waits behind those of B and C."""
    config = LevelsConfig(thresholds=(4, 8), beta=None)
    plas = run(ProgramAttainedService(config), TREE_AND_CHAINS, slots=2)
    atlas = run(ThreadAttainedService(config), TREE_AND_CHAINS, slots=2)
    assert (atlas.ended["A"], plas.ended["A"]) == (11, 14)


def test_program_fcfs_lets_nobody_pass_a_long_program() -> None:
    gantt = run(ProgramFirstComeFirstServed(), {"A": (2, 2, 2), "B": (1,), "C": (1,)}, slots=1)
    assert [row[0] for row in gantt.rows] == ["A"] * 6 + ["B", "C"]


# -- queues and quanta -----------------------------------------------------------------------------

WIDE = LevelsConfig(thresholds=(10, 30), beta=None)


def level(policy: LevelQueues, command: ReadyCommand) -> float:
    return policy.key(command)[0]


def arrived(policy: LevelQueues, number: int, **fields: object) -> ReadyCommand:
    command = ready(number, program=number, **fields)  # type: ignore[arg-type]
    policy.on_arrival(command, 0.0)
    return command


def serve(policy: LevelQueues, command: ReadyCommand, num_tokens: int, now_s: float) -> None:
    """For ``num_tokens`` seconds until ``now_s``, one for each token."""
    command.family_figures.waiting_s += max(0.0, now_s - num_tokens - command.ready_s)
    command.service_tokens += num_tokens
    command.service_s += num_tokens
    command.family_figures.service_tokens += num_tokens
    command.family_figures.service_s += num_tokens
    command.ready_s = now_s
    policy.on_served(command, num_tokens, float(num_tokens), now_s)


@pytest.mark.parametrize(("tokens", "queue"), [(0, 0), (9, 0), (10, 1), (29, 1), (30, 2), (999, 2)])
def test_a_call_begins_in_the_queue_of_what_its_family_was_served(tokens: int, queue: int) -> None:
    """A queue's range holds its lower bound, not its upper one."""
    served = ServiceFigures(service_tokens=tokens)
    policy = ProgramAttainedService(WIDE)
    assert level(policy, arrived(policy, 1, family_figures=served)) == queue
    feedback = MultiLevelFeedback(WIDE)
    assert level(feedback, arrived(feedback, 1, family_figures=served)) == 0


def test_atlas_counts_the_longest_path_where_plas_counts_all() -> None:
    """Ten threads of three tokens each, side by side."""
    plas, atlas = ProgramAttainedService(WIDE), ThreadAttainedService(WIDE)
    command = ready(1, family_figures=ServiceFigures(service_tokens=30))
    command.path_tokens = 3
    plas.on_arrival(command, 0.0)
    atlas.on_arrival(command, 0.0)
    assert (level(plas, command), level(atlas, command)) == (2, 0)


def test_a_call_is_demoted_by_its_quantum_and_not_before() -> None:
    policy = MultiLevelFeedback(WIDE)
    command = arrived(policy, 1)
    serve(policy, command, 9, 1.0)
    assert level(policy, command) == 0
    serve(policy, command, 1, 2.0)
    assert level(policy, command) == 1
    serve(policy, command, 19, 3.0)
    assert level(policy, command) == 1
    serve(policy, command, 1, 4.0)
    assert level(policy, command) == 2
    serve(policy, command, 10_000, 5.0)
    assert level(policy, command) == 2, "the last queue has no quantum"


def test_a_long_prompt_uses_up_several_quanta_at_once() -> None:
    """What is left over counts in the next queue."""
    policy = MultiLevelFeedback(WIDE)
    command = arrived(policy, 1)
    serve(policy, command, 25, 1.0)
    assert level(policy, command) == 1
    serve(policy, command, 5, 2.0)
    assert level(policy, command) == 2


def test_within_a_queue_the_first_to_enter_goes_first() -> None:
    policy = MultiLevelFeedback(WIDE)
    first, second = arrived(policy, 1), arrived(policy, 2)
    assert policy.key(first) < policy.key(second)
    serve(policy, second, 10, 1.0)
    serve(policy, first, 10, 2.0)
    assert policy.key(second) < policy.key(first)


def test_seconds_may_be_the_unit() -> None:
    policy = ProgramAttainedService(LevelsConfig(thresholds=(0.5, 2.0), unit="seconds"))
    served = ServiceFigures(service_tokens=5000, service_s=0.4)
    command = arrived(policy, 1, family_figures=served)
    assert level(policy, command) == 0
    policy.on_served(command, 1, 0.6, 1.0)
    assert level(policy, command) == 1


# -- starvation ------------------------------------------------------------------------------------


def starving(policy: LevelQueues, number: int, served: int = 20) -> ReadyCommand:
    """Waits since time ``served`` in a queue behind the first."""
    command = arrived(policy, number)
    serve(policy, command, served, float(served))
    assert level(policy, command) > 0
    return command


def test_a_call_is_promoted_when_its_program_has_waited_beta_times_its_service() -> None:
    policy = MultiLevelFeedback(LevelsConfig(thresholds=(10, 30), beta=2.0))
    command = starving(policy, 1)
    assert not policy.on_time(59.9)
    assert level(policy, command) == 1
    assert policy.on_time(60.0) == [command]
    assert level(policy, command) == 0


def test_without_beta_nobody_is_promoted() -> None:
    policy = MultiLevelFeedback(WIDE)
    starving(policy, 1)
    assert not policy.on_time(1e9)


def test_what_the_program_has_waited_before_counts() -> None:
    policy = MultiLevelFeedback(LevelsConfig(thresholds=(10, 30), beta=2.0, promoted_share=1.0))
    policy.on_capacity(2)
    command = starving(policy, 1)
    command.family_figures.waiting_s = 30.0
    waiting = [now_s for now_s in range(20, 61) if policy.on_time(float(now_s))]
    assert waiting == [60], "it is looked at again when it would be due as it was then"
    other = arrived(policy, 2, arrival_s=60.0, family_figures=ServiceFigures(waiting_s=30.0))
    serve(policy, other, 20, 80.0)
    assert policy.on_time(90.0) == [other]


def test_a_call_that_is_served_meanwhile_is_due_later() -> None:
    policy = MultiLevelFeedback(LevelsConfig(thresholds=(10, 300), beta=2.0))
    command = starving(policy, 1)
    serve(policy, command, 20, 50.0)
    assert not policy.on_time(60.0)
    assert not policy.on_time(119.0)
    assert policy.on_time(120.0) == [command], "twice its 40 seconds, without the 10 it had waited"


def test_after_a_promotion_the_calls_own_figures_begin_anew() -> None:
    policy = MultiLevelFeedback(LevelsConfig(thresholds=(10, 30), beta=2.0))
    command = starving(policy, 1)
    assert policy.on_time(60.0)
    serve(policy, command, 10, 70.0)
    assert level(policy, command) == 1, "the first queue's quantum is used up again"
    assert not policy.on_time(89.0)
    assert policy.on_time(90.0) == [command], "twice the ten seconds since it was promoted"


def test_promoted_calls_have_a_bounded_share_of_the_sequences() -> None:
    """Of 20 sequences a tenth: two at a time, those that are due for longest first."""
    policy = MultiLevelFeedback(LevelsConfig(thresholds=(10, 30), beta=2.0, promoted_share=0.1))
    policy.on_capacity(20)
    commands = [starving(policy, number, served=20 + number) for number in range(6)]
    assert policy.on_time(1000.0) == commands[:2]
    assert not policy.on_time(1001.0)
    serve(policy, commands[1], 9, 1010.0)
    assert not policy.on_time(1010.0), "it has not had the first queue's quantum"
    serve(policy, commands[1], 1, 1011.0)
    assert policy.on_time(1011.0) == [commands[2]]
    policy.on_ended(commands[0], 1012.0)
    assert policy.on_time(1012.0) == [commands[3]]


def test_the_starvation_bound_holds_under_overload() -> None:
    """Everybody is due at all times, and new programs come without end: whoever is due is served
    within a turn of the first queue for each that is due before it."""
    policy = MultiLevelFeedback(LevelsConfig(thresholds=(10, 30), beta=0.01))
    policy.on_capacity(1)
    old = [starving(policy, number) for number in range(8)]
    first_served: dict[int, float] = {}
    now_s, number = 100.0, 100
    while len(first_served) < len(old):
        number += 1
        now_s += 5.0
        newcomer = arrived(policy, number, arrival_s=now_s)
        policy.on_time(now_s)
        chosen = min([*old, newcomer], key=policy.key)
        serve(policy, chosen, 5, now_s)
        if chosen is not newcomer:
            first_served.setdefault(chosen.program, now_s)
        else:
            policy.on_ended(newcomer, now_s)
        assert now_s < 100.0 + 5.0 * len(old) * 8, "a call that is due is never served"


def test_ended_calls_do_not_stay_among_those_that_may_starve() -> None:
    policy = MultiLevelFeedback(LevelsConfig(thresholds=(10, 30), beta=1e6))
    for number in range(5000):
        policy.on_ended(starving(policy, number), 30.0)
    assert len(policy._promotions._watched) < 600


class TestSeconds(PolicySuite):
    def make_policy(self) -> Policy:
        return ProgramAttainedService(LevelsConfig(thresholds=(0.5, 2.0), unit="seconds"))


class TestTwoQueues(PolicySuite):
    def make_policy(self) -> Policy:
        return ThreadAttainedService(LevelsConfig(thresholds=(1,), promoted_share=1.0))
