"""The policy ``quire``: what is left is learned from the totals of programs of the same kind."""

from __future__ import annotations

import random
from math import floor, log2

import pytest
from gantt import run

from quire.control.policies import FirstComeFirstServed, LeastLeft, ProgramAttainedService
from quire.control.policies.gittins import gittins_index
from quire.control.policies.kinds import (
    MAX_KINDS,
    MIN_ENDED,
    MIN_ENDED_OF_KIND,
    SHORTEST_TOKENS,
    KindOfProgram,
    Kinds,
)
from quire.control.policies.lifetimes import FEWEST_TOKENS
from quire.control.policies.quire import IDLE_S, MAX_EMPTY, TURN_TOKENS
from quire.core.ids import ProgramId
from quire.core.policy import ReadyCommand, ServiceFigures
from quire.core.scheduler_config import LevelsConfig
from quire.testing.conformance.policy import ready


def level_at(tokens: float) -> float:
    """The level of a program whose rank is that number of tokens: in quarters of an octave, and 1
    for the promoted ones."""
    return 1 + floor(4 * log2(tokens)) / 4


def rough_level_at(tokens: float) -> float:
    """The level of a program of which only its length so far is known: whole octaves apart."""
    return 1 + floor(log2(tokens)) + 0.75


FAR = rough_level_at(100_000)
"""The level of a program of an unknown kind with a service of 100,000 tokens."""


def end_one(kind: KindOfProgram, total: float) -> None:
    kind.end(kind.begin(ServiceFigures(service_tokens=int(total))))


def kind_of(*totals: float, times: int = MIN_ENDED) -> KindOfProgram:
    kind = KindOfProgram()
    for _ in range(times):
        for total in totals:
            end_one(kind, total)
    return kind


def rank(kind: KindOfProgram, attained: float) -> float:
    known = kind.rank(attained)
    assert known is not None
    return known


# -- the index -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("totals", "attained", "index"),
    [
        ([100.0], 0.0, 1 / 100),
        ([100.0], 60.0, 1 / 40),
        ([100.0], 100.0, 0.0),
        ([10.0, 1000.0], 0.0, 0.5 / 10),  # half end after 10, which is the best thing to try
        ([10.0, 1000.0], 10.0, 1 / 990),
        ([10.0, 12.0], 0.0, 1 / 11),  # both: 2 / (10 * 2 + 2 * 1)
        ([10.0, 10.0, 40.0], 0.0, (2 / 3) / 10),
    ],
)
def test_the_index_is_the_best_chance_to_end_for_the_service_spent(
    totals: list[float], attained: float, index: float
) -> None:
    assert gittins_index(totals, attained) == pytest.approx(index)


def test_the_index_equals_its_definition() -> None:
    """Over all amounts that could be given: the chance to end within, by the expected service."""
    random.seed(3)
    for _ in range(50):
        totals = sorted(random.choice([5, 20, 80, 300, 1000.0]) for _ in range(12))
        attained = random.choice([0.0, 4.0, 5.0, 60.0, 300.0, 999.0])
        left = [total - attained for total in totals if total > attained]
        best = max(
            (
                sum(one <= amount for one in left) / sum(min(one, amount) for one in left)
                for amount in left
            ),
            default=0.0,
        )
        assert gittins_index(totals, attained) == pytest.approx(best)


def test_equal_lengths_get_better_towards_the_end_and_long_tails_worse() -> None:
    equal = kind_of(4000.0, 4100.0)
    assert rank(equal, 3000.0) < rank(equal, 1000.0) <= rank(equal, 0.0)
    tailed = kind_of(200.0, 220.0, 240.0, 50_000.0)
    assert rank(tailed, 0.0) < rank(tailed, 500.0)


def test_a_kind_of_which_little_is_known_has_no_rank() -> None:
    kind = kind_of(100.0, times=MIN_ENDED - 1)
    assert kind.rank(0.0) is None
    end_one(kind, 100.0)
    assert kind.rank(64.0) == log2(SHORTEST_TOKENS)


def test_beyond_all_that_was_seen_it_ranks_by_what_was_served_and_the_tail() -> None:
    """One of four equal programs could be the long one of a tail: an end costs half of the service
    so far. The programs generate nothing, so their length counts instead."""
    kind = kind_of(1000.0)
    assert kind.rank(8192.0) == pytest.approx((log2(8192 / 2) + log2(8192)) / 2)


def test_those_that_live_on_say_that_programs_are_long() -> None:
    """Half end after 100 tokens; whether the others end at all nobody knows yet. With those that
    ended alone a program of 64 tokens would be sure to end within 36 more."""
    kind = KindOfProgram()
    for _ in range(MIN_ENDED):
        kind.begin(ServiceFigures(service_tokens=50_000))
    for _ in range(MIN_ENDED):
        end_one(kind, 100.0)
    assert rank(kind, 64.0) == pytest.approx(log2(2 * 100 * (100 - 64)) / 2)
    assert rank(kind, 64.0) > rank(kind_of(100.0), 64.0)


def test_kinds_are_bounded_and_the_one_not_used_for_longest_goes() -> None:
    kinds = Kinds()
    first = kinds.get(("t", "first"))
    for number in range(MAX_KINDS - 1):
        kinds.get(("t", str(number)))
    assert kinds.get(("t", "first")) is first
    kinds.get(("t", "one more"))
    assert kinds.get(("t", "first")) is first
    assert len(kinds._kinds) == MAX_KINDS


# -- the policy ------------------------------------------------------------------------------------


def policy(beta: float | None = None) -> LeastLeft:
    return LeastLeft(LevelsConfig(beta=beta))


def call(number: int, program: int, **fields: object) -> ReadyCommand:
    return ready(number, program=program, **fields)  # type: ignore[arg-type]


def serve(made: LeastLeft, command: ReadyCommand, num_tokens: int, now_s: float) -> None:
    command.family_figures.service_tokens += num_tokens
    made.on_served(command, num_tokens, 0.1, now_s)


def finish(made: LeastLeft, program: int, total: int, kind: str = "", now_s: float = 0.0) -> None:
    """A program of one call that was served ``total``."""
    command = call(1, program)
    command.kind = kind
    made.on_arrival(command, now_s)
    serve(made, command, total, now_s)
    made.on_ended(command, now_s)
    made.on_program_ended(ProgramId(program), now_s)


def level(made: LeastLeft, command: ReadyCommand) -> float:
    return made.key(command)[0]


def test_a_newcomer_is_not_promoted_before_it_has_waited_as_for_a_call() -> None:
    made = policy(beta=2.0)
    for number in range(100):
        ended = call(1, 100 + number)
        made.on_arrival(ended, 0.0)
        ended.service_s = 3.0
        made.on_ended(ended, 0.0)
    newcomer = call(1, 1)
    made.on_arrival(newcomer, 0.0)
    assert made.on_time(5.9) == []
    assert made.on_time(6.0) == [newcomer]


def test_a_program_near_its_end_is_not_displaced_by_a_new_one_of_its_kind() -> None:
    """Under ``plas`` it would be: that is what light tails lose there."""
    made = policy()
    for number in range(40):
        finish(made, 100 + number, 4600)
    old = call(1, 1, arrival_s=1.0)
    made.on_arrival(old, 1.0)
    serve(made, old, 4200, 2.0)
    new = call(1, 2, arrival_s=3.0)
    made.on_arrival(new, 3.0)
    assert made.key(old) < made.key(new)
    assert level(made, old) < level(made, new)


def test_short_programs_are_worth_more_than_long_ones_that_cost_as_much_to_end() -> None:
    """Both have about 500 tokens left."""
    short, long = kind_of(500.0), kind_of(4600.0)
    assert rank(short, 0.0) == pytest.approx(log2(500))
    assert rank(long, 4100.0) == pytest.approx((log2(504) + log2(4600)) / 2)


def test_the_end_of_a_program_is_worth_more_the_less_it_generates() -> None:
    """Of two kinds that are served alike the one goes first whose answers are short."""
    kinds = []
    for num_generated in (2000, 20, 1):
        kind = KindOfProgram()
        for _ in range(MIN_ENDED):
            figures = ServiceFigures(service_tokens=2000, generated_tokens=num_generated)
            kind.end(kind.begin(figures))
        kinds.append(kind)
    wordy, terse, silent = kinds
    assert rank(wordy, 0.0) == pytest.approx(log2(2000))
    assert rank(terse, 0.0) == pytest.approx((log2(2000) + log2(20)) / 2)
    assert rank(silent, 0.0) == pytest.approx((log2(2000) + log2(FEWEST_TOKENS)) / 2)


def test_a_session_that_begins_anew_counts_what_it_generates_from_then_on() -> None:
    figures = ServiceFigures(service_tokens=5000, generated_tokens=4000)
    kind = KindOfProgram()
    life = kind.begin(figures, tokens_before=5000)
    figures.service_tokens, figures.generated_tokens = 5800, 4200
    assert (life.served, life.worth) == (800.0, 1 / 200)


def test_kinds_are_learned_apart() -> None:
    made = policy()
    for number in range(40):
        finish(made, 100 + number, 300, kind="short")
        finish(made, 200 + number, 30_000, kind="long")
    short, long = call(1, 1), call(1, 2)
    short.kind, long.kind = "short", "long"
    for one in (long, short):
        made.on_arrival(one, 0.0)
    assert level(made, short) < level(made, long)


def test_a_kind_of_which_nothing_is_known_is_taken_for_any_other() -> None:
    made = policy()
    new = call(1, 1)
    new.kind = "new"
    made.on_arrival(new, 0.0)
    assert level(made, new) == rough_level_at(2**6)
    for number in range(MIN_ENDED):
        finish(made, 100 + number, 300, kind="known")
    other = call(1, 2)
    other.kind = "another"
    made.on_arrival(other, 0.0)
    assert level(made, other) == level_at(2**8)


def begin(made: LeastLeft, program: int, kind: str, served: int = 0) -> ReadyCommand:
    """A program that goes on after a service of ``served``."""
    command = call(1, program)
    command.kind = kind
    made.on_arrival(command, 0.0)
    if served:
        serve(made, command, served, 0.0)
    return command


def test_of_an_unknown_kind_programs_are_as_long_as_two_have_been() -> None:
    """As searches among chats: none has ended yet, but two show that they are long."""
    made = policy()
    for number in range(MIN_ENDED_OF_KIND):
        finish(made, 100 + number, 300, kind="chat")
    search = begin(made, 1, "search", served=6500)
    begin(made, 4, "search", served=6000)
    later, chat = begin(made, 2, "search"), begin(made, 3, "chat")
    assert level(made, later) == rough_level_at(6000)
    assert level(made, chat) < level(made, search) < level(made, later), "one of them gets on"
    serve(made, later, 3000, 1.0)
    assert level(made, later) == rough_level_at(6000), "half as long so far"


def test_where_nothing_is_known_a_program_makes_way_for_none_of_its_kind() -> None:
    """Unless it is longer than all others: so programs of about equal length are served by age, and
    not in turns, also before any has ended."""
    made = policy()
    first, second = begin(made, 1, "agent", served=3000), begin(made, 2, "agent", served=2500)
    newcomer = begin(made, 3, "agent")
    assert level(made, newcomer) == level(made, second) == level(made, first)
    assert made.key(first) < made.key(second) < made.key(newcomer)
    serve(made, first, 30_000, 1.0)
    serve(made, newcomer, 1, 1.0)
    assert level(made, first) > level(made, newcomer) == level(made, second)


def test_calls_that_wait_do_not_seem_shorter_than_those_that_run() -> None:
    """They came when programs of their kind had not had much yet. Of another kind nothing changes,
    and a promoted call keeps its turn."""
    made = policy()
    first, second = begin(made, 1, "agent"), begin(made, 2, "agent")
    waiting, chat, promoted = begin(made, 3, "agent"), begin(made, 4, "chat"), call(1, 5)
    promoted.kind, promoted.program_figures.deadline_s = "agent", 10.0
    made.on_arrival(promoted, 0.0)
    assert made.on_time(6.0) == [promoted]
    serve(made, first, 3000, 6.0)
    assert made.on_time(6.0) == [], "one alone says nothing"
    serve(made, second, 2500, 6.0)
    assert waiting in made.on_time(6.0)
    assert level(made, waiting) == level(made, second) == level(made, first)
    assert level(made, chat) < level(made, waiting)
    assert level(made, promoted) == 0
    serve(made, second, 100, 6.0)
    assert made.on_time(6.0) == [], "not for every token"


def test_where_nothing_is_known_a_kind_that_has_turned_out_long_makes_way() -> None:
    made = policy()
    begin(made, 1, "search", served=40_000)
    begin(made, 2, "search", served=10_000)
    search, chat = begin(made, 3, "search"), begin(made, 4, "chat", served=1000)
    assert level(made, chat) < level(made, search)


def test_the_second_longest_of_a_kind_is_one_of_two_lives() -> None:
    kind = KindOfProgram()
    first, second, third = [kind.begin(ServiceFigures()) for _ in range(3)]
    assert kind.second_longest(first, 10.0) == 0.0
    assert kind.second_longest(first, 20.0) == 0.0, "one alone, however often it is noted"
    assert kind.second_longest(second, 5.0) == 5.0
    assert kind.second_longest(third, 3.0) == 5.0
    assert kind.second_longest(second, 30.0) == 20.0
    assert kind.second_longest(third, 25.0) == 25.0
    assert kind.second_longest(second, 40.0) == 25.0
    assert kind.second_longest(first, 20.0) == 25.0


def test_the_first_programs_of_a_kind_to_end_do_not_make_the_others_seem_short() -> None:
    made = policy()
    for number in range(MIN_ENDED):
        finish(made, 100 + number, 300, kind="chat")
    for number in range(MIN_ENDED_OF_KIND - 1):
        finish(made, 200 + number, 500, kind="search")
    for number in (1, 4):
        begin(made, number, "search", served=6000)
    assert level(made, begin(made, 2, "search")) == rough_level_at(6000)
    finish(made, 300, 500, kind="search")
    assert level(made, begin(made, 3, "search")) < level_at(2**10), "now it is known"


def test_a_program_alone_of_its_kind_is_taken_for_any_other_all_along() -> None:
    """Near the end of programs with light tails its rank gets better: what it has had itself says
    nothing about its length."""
    made = policy()
    for number in range(40):
        finish(made, 100 + number, 4600, kind="known")
    alone, known = begin(made, 1, "alone", served=4200), begin(made, 2, "known", served=4200)
    assert level(made, alone) == level(made, known) < level_at(4200)


def test_where_there_is_one_kind_alone_a_long_program_says_nothing_of_the_others() -> None:
    made = policy()
    for number in range(MIN_ENDED):
        finish(made, 100 + number, 300)
    for number in (1, 3):
        begin(made, number, "", served=6000)
    assert level(made, begin(made, 2, "")) < level_at(2**10)


def test_equals_of_a_level_are_served_by_age_and_not_in_turns() -> None:
    gantt = run(policy(), {"A": (3, 3), "B": (3, 3)}, slots=1)
    assert [row[0] for row in gantt.rows[:6]] == ["A"] * 6


@pytest.mark.parametrize("num_known", [0, 64])
def test_on_light_tails_programs_end_no_later_than_under_fcfs_and_sooner_than_under_plas(
    num_known: int,
) -> None:
    """Programs of about equal length, all at once; mean end."""
    random.seed(1)
    programs = {
        f"{number:02}": [random.randint(90, 110) for _ in range(random.randint(9, 11))]
        for number in range(12)
    }
    made = policy()
    for number in range(num_known):
        finish(made, 1000 + number, 1000 + number % 32)

    def mean(policy: object) -> float:
        ended = run(policy, programs, slots=4).ended.values()  # type: ignore[arg-type]
        return sum(ended) / len(ended)

    plas = mean(ProgramAttainedService(LevelsConfig()))
    assert mean(made) <= mean(FirstComeFirstServed())
    assert mean(made) < 0.8 * plas


def test_a_program_that_was_idle_for_long_begins_anew() -> None:
    made = policy()
    for number in range(MIN_ENDED_OF_KIND):
        finish(made, 100 + number, 300)
    figures = ServiceFigures()
    first = call(1, 1, family_figures=figures)
    made.on_arrival(first, 0.0)
    serve(made, first, 100_000, 10.0)
    made.on_ended(first, 10.0)
    soon = call(2, 1, family_figures=figures)
    made.on_arrival(soon, 10.0 + IDLE_S)
    assert level(made, soon) >= FAR - 1
    made.on_ended(soon, 20.0)
    late, other = call(3, 1, family_figures=figures), call(4, 2)
    made.on_arrival(late, 10.1 + IDLE_S)
    made.on_arrival(other, 10.1 + IDLE_S)
    assert level(made, late) == level(made, other) < FAR, "as a program that begins"


def test_launching_others_earns_no_fresh_rank() -> None:
    """A root that calls nothing itself, and one child behind the other."""
    made = policy()
    figures = ServiceFigures()
    levels = []
    for child in range(2, 6):
        command = call(1, child, family_figures=figures)
        command.family = ProgramId(1)
        made.on_arrival(command, float(child))
        levels.append(level(made, command))
        serve(made, command, 40_000, float(child))
        made.on_ended(command, float(child))
        made.on_program_ended(ProgramId(child), float(child))
    assert levels == [rough_level_at(max(served, SHORTEST_TOKENS))
                      for served in (0, 40_000, 80_000, 120_000)]  # fmt: skip
    made.on_program_ended(ProgramId(1), 9.0)
    assert not made._families
    assert not made._empty
    kind = made._kinds.get(("default", ""))
    assert [one.served for one in kind._lives._ended] == [160_000]


def test_a_family_whose_root_has_ended_goes_with_its_last_program() -> None:
    made = policy()
    root, child = call(1, 1), call(1, 2)
    child.family = ProgramId(1)
    for one in (root, child):
        made.on_arrival(one, 0.0)
        made.on_ended(one, 0.0)
    made.on_program_ended(ProgramId(1), 1.0)
    assert made._families
    made.on_program_ended(ProgramId(2), 2.0)
    assert not made._families
    assert not made._empty


def test_families_whose_roots_are_not_heard_of_again_are_bounded() -> None:
    made = policy()
    for root in range(1, 4000):
        command = call(1, 10_000 + root)
        command.family = ProgramId(root)
        made.on_arrival(command, 0.0)
        made.on_ended(command, 0.0)
        made.on_program_ended(command.program, 0.0)
    assert len(made._families) == MAX_EMPTY


def test_a_promoted_call_has_a_turn_before_all_others() -> None:
    made = policy(beta=2.0)
    command = call(1, 1)
    made.on_arrival(command, 0.0)
    command.family_figures.service_s = command.service_s = 10.0
    serve(made, command, 50_000, 10.0)
    command.ready_s = 10.0
    assert made.on_time(29.9) == []
    assert made.on_time(30.0) == [command]
    new = call(1, 2)
    made.on_arrival(new, 30.0)
    assert made.key(command) < made.key(new)
    serve(made, command, TURN_TOKENS - 1, 31.0)
    assert level(made, command) == 0
    serve(made, command, 1, 32.0)
    assert level(made, command) > 0


# -- deadlines -------------------------------------------------------------------------------------


def with_deadline(number: int, program: int, deadline_s: float) -> ReadyCommand:
    """Of a program that began at 0 and was served much."""
    return call(
        number,
        program,
        family_figures=ServiceFigures(service_tokens=100_000, service_s=1.0),
        program_figures=ServiceFigures(deadline_s=deadline_s),
    )


@pytest.mark.parametrize("beta", [None, 1e6])
def test_a_call_is_promoted_when_half_of_its_programs_time_is_over(beta: float | None) -> None:
    made = policy(beta)
    urgent, other = with_deadline(1, 1, 100.0), with_deadline(1, 2, 1e9)
    for one in (urgent, other):
        made.on_arrival(one, 0.0)
    assert made.on_time(49.9) == []
    assert made.on_time(50.0) == [urgent]
    assert (level(made, urgent), level(made, other)) == (0, FAR)
    serve(made, urgent, TURN_TOKENS, 51.0)
    assert level(made, urgent) > 0, "it has had its turn"
    assert made.on_time(51.0) == [urgent], "and is due again at once"


def test_behind_its_deadline_a_call_is_not_promoted_for_it() -> None:
    made = policy()
    late = with_deadline(1, 1, 100.0)
    made.on_arrival(late, 0.0)
    assert made.on_time(100.0) == []
    assert level(made, late) == FAR


def test_calls_with_deadlines_share_the_places_of_the_promoted() -> None:
    """The one that is due first has the place; nobody can take all by short deadlines."""
    made = policy()
    made.on_capacity(1)
    second, first = with_deadline(1, 1, 100.0), with_deadline(1, 2, 90.0)
    for one in (second, first):
        made.on_arrival(one, 0.0)
    assert made.on_time(60.0) == [first]
    made.on_ended(first, 61.0)
    assert made.on_time(61.0) == [second]
