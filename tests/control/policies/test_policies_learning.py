"""What ``quire`` learns beside lengths: the cost of prompts, and how much is left past the
longest."""

from __future__ import annotations

from math import e, log, log2

import pytest

from quire.control.policies import LeastLeft
from quire.control.policies.kinds import KindOfProgram
from quire.control.policies.prompt_weight import MEMORY, MIN_PROGRAMS, PromptWeight
from quire.control.policies.tails import cost_beyond
from quire.core.policy import ServiceFigures
from quire.core.scheduler_config import LevelsConfig
from quire.testing.conformance.policy import ready

PROGRAMS = [(400, 300), (100, 500), (900, 250), (300, 100)] * (MIN_PROGRAMS // 4)
"""The numbers of tokens of the prompt and of the answer, for each program."""


# -- what a token of a prompt costs ----------------------------------------------------------------


def learned(prompt_s: float, generated_s: float) -> float:
    weight = PromptWeight()
    for num_prompt, num_generated in PROGRAMS:
        seconds = num_prompt * prompt_s + num_generated * generated_s
        weight.learn(num_prompt, num_generated, seconds)
    return weight.value


@pytest.mark.parametrize("share", [0.0, 0.001, 0.2, 0.9])
def test_the_costs_of_both_sorts_of_tokens_are_told_apart(share: float) -> None:
    assert learned(0.01 * share, 0.01) == pytest.approx(share, abs=1e-9)


def test_no_token_of_a_prompt_counts_more_than_a_generated_one() -> None:
    assert learned(0.02, 0.01) == 1.0
    assert learned(0.01, 0.0) == 1.0


def test_a_token_is_a_token_until_enough_is_known() -> None:
    weight = PromptWeight()
    for number, (num_prompt, num_generated) in enumerate(PROGRAMS):
        assert weight.value == 1.0, number
        weight.learn(num_prompt, num_generated, 0.01 * num_generated)
    assert weight.value == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("difference", [0.0, 0.001])
def test_programs_that_are_all_alike_tell_nothing(difference: float) -> None:
    """Any weight would explain them, and a difference of a thousandth is noise."""
    weight = PromptWeight()
    for scale in range(1, 40):
        num_generated = 50 * scale * (1 + difference * (-1) ** scale)
        weight.learn(100 * scale, num_generated, 0.01 * num_generated)
    assert weight.value == 1.0


def test_programs_without_one_sort_or_without_time_say_nothing() -> None:
    weight = PromptWeight()
    for _ in range(MIN_PROGRAMS):
        for figures in ((100, 0, 1.0), (0, 100, 1.0), (100, 100, 0.0)):
            weight.learn(*figures)
    assert weight.value == 1.0
    assert weight._num == 0


def test_what_an_engine_costs_now_counts_more_than_what_it_cost_once() -> None:
    weight = PromptWeight()
    for num_prompt, num_generated in PROGRAMS * 64:
        weight.learn(num_prompt, num_generated, 0.01 * (num_prompt + num_generated))
    assert weight.value == pytest.approx(1.0)
    for num_prompt, num_generated in PROGRAMS * (3 * MEMORY // len(PROGRAMS)):
        weight.learn(num_prompt, num_generated, 0.01 * num_generated)
    assert weight.value < 0.1


# -- what is left past the longest -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("totals", "live", "share"),
    [
        ([100.0] * 4, [], 1 / 2),  # the longest of four is as long as the next
        ([100.0] * 64, [], 1 / 17),
        ([100.0] * 3 + [100.0 * e], [], 2 / 2),
        ([100.0] * 3 + [100.0 * e**0.5], [], 1.5 / 2),
        ([100.0] * 4, [50.0, 100.0 * e**0.5], 1.5 / 2),  # one goes on, nobody knows how long
        ([100.0] * 4, [1e6], 1.0),  # never more than what it was served
        ([100.0], [], 1.0),
        ([0.0, 0.0], [], 1.0),
    ],
)
def test_the_tail_says_what_an_end_costs(
    totals: list[float], live: list[float], share: float
) -> None:
    assert cost_beyond(totals, live) == pytest.approx(share)


def test_of_a_tail_of_powers_the_exponent_is_found() -> None:
    """Quantiles of a Pareto distribution with exponent 2: an end costs half of the service so
    far."""
    totals = sorted((1 - (number + 0.5) / 400) ** -0.5 for number in range(400))
    assert cost_beyond(totals, []) == pytest.approx(0.5, abs=0.03)


# -- kinds -----------------------------------------------------------------------------------------


def end_one(kind: KindOfProgram, num_prompt: int, num_generated: int, prompt_s: float) -> None:
    kind.end(
        kind.begin(
            ServiceFigures(
                service_tokens=num_prompt + num_generated,
                generated_tokens=num_generated,
                service_s=prompt_s * num_prompt + 0.01 * num_generated,
            )
        )
    )


def test_a_program_just_past_the_longest_of_equal_ones_is_not_put_behind_all_others() -> None:
    """It does not have as much left as its service so far: lengths differ by a hundredth."""
    kind = KindOfProgram()
    for number in range(64):
        end_one(kind, 0, 2000 + number % 20, 0.0)
    new, past = kind.rank(0.0), kind.rank(3000.0)
    assert new is not None
    assert past is not None
    assert past < new


def test_of_a_kind_with_a_long_tail_what_was_served_is_left() -> None:
    kind = KindOfProgram()
    for number in range(64):
        end_one(kind, 0, 100 * 2 ** (number % 8), 0.0)
    past = kind.rank(2.0**15)
    assert past == pytest.approx(15.0, abs=0.2)


def test_a_long_prompt_is_no_progress_where_prompts_cost_little() -> None:
    """Both have generated 100 tokens of about 300; one of them behind a prompt of 900."""
    kind = KindOfProgram()
    for num_prompt, num_generated in PROGRAMS * 8:
        end_one(kind, num_prompt, num_generated, 0.0)
    ranks = []
    for num_prompt in (100, 900):
        life = kind.begin(ServiceFigures(service_tokens=num_prompt + 100, generated_tokens=100))
        ranks.append(kind.rank(life.progress(kind.prompt_weight)))
    assert ranks[0] == ranks[1]


def test_a_program_with_a_short_prompt_is_not_behind_one_with_a_long_one() -> None:
    """Prompts of their kind cost nothing, and both have generated equally many tokens."""
    made = LeastLeft(LevelsConfig(beta=None))
    for number, (num_prompt, num_generated) in enumerate(PROGRAMS * 8):
        command = ready(1, program=100 + number, family_figures=ServiceFigures())
        made.on_arrival(command, 0.0)
        figures = command.family_figures
        figures.service_tokens = num_prompt + num_generated
        figures.generated_tokens, figures.service_s = num_generated, 0.01 * num_generated
        made.on_served(command, num_prompt + num_generated, 1.0, 1.0)
        made.on_ended(command, 1.0)
        made.on_program_ended(command.program, 1.0)
    levels = []
    for program, num_prompt in ((1, 100), (2, 900)):
        figures = ServiceFigures(service_tokens=num_prompt + 100, generated_tokens=100)
        command = ready(1, program=program, family_figures=figures)
        made.on_arrival(command, 2.0)
        figures.service_tokens += num_prompt
        made.on_served(command, num_prompt, 0.1, 3.0)
        levels.append(made.key(command)[0])
    assert levels[0] == levels[1]


def test_where_prompts_cost_as_much_they_are_progress() -> None:
    kind = KindOfProgram()
    for num_prompt, num_generated in PROGRAMS * 8:
        end_one(kind, num_prompt, num_generated, 0.01)
    life = kind.begin(ServiceFigures(service_tokens=1000, generated_tokens=100))
    assert life.progress(kind.prompt_weight) == 1000.0


def test_a_life_that_begins_anew_counts_its_own_prompts_answers_and_seconds() -> None:
    figures = ServiceFigures(service_tokens=5000, generated_tokens=4000, service_s=50.0)
    life = KindOfProgram().begin(figures, tokens_before=5000)
    figures.service_tokens, figures.generated_tokens, figures.service_s = 5800, 4200, 53.0
    assert (life.served, life.generated, life.service_s) == (800.0, 200.0, 3.0)
    assert life.progress(0.5) == 200.0 + 0.5 * 600.0
    assert life.progress(1.0) == 800.0


def test_ranks_past_the_longest_go_on_where_it_was() -> None:
    """Both the cost of an end and the generated tokens rise with progress."""
    kind = KindOfProgram()
    for _ in range(4):
        end_one(kind, 750, 250, 0.01)
    share = cost_beyond([1000.0] * 4, [])
    expected = (log2(8000 * share) + log2(8000 / 4)) / 2
    assert kind.rank(8000.0) == pytest.approx(expected)
    assert log(share) < 0
