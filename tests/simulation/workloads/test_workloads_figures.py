"""The generators have the means and the largest values of the traces that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean, stdev

import pytest

from quire.core.errors import ConfigError
from quire.simulation.workloads import (
    WORKLOADS,
    CallPlan,
    ProgramPlan,
    create_workload,
    draw_programs,
)


def drawn(name: str, num_programs: int) -> list[ProgramPlan]:
    return draw_programs(create_workload(name), num_programs, seed=5)


def own_calls(plans: list[ProgramPlan]) -> Iterator[tuple[CallPlan, int]]:
    """The calls of programs themselves, each with the length of its whole prompt."""
    for plan in plans:
        for call, length in zip(plan.calls, plan.prompt_lengths, strict=True):
            if not call.member:
                yield call, length


def added(call: CallPlan, length: int) -> int:
    return call.num_prompt


def whole(call: CallPlan, length: int) -> int:
    return length


@pytest.mark.parametrize(
    ("name", "num_programs", "calls", "most", "prompt", "prompt_tokens", "output_tokens"),
    [
        ("sharegpt", 5_000, 6.66, 80, added, 256, 277),
        ("bfcl", 3_000, 10.75, 70, whole, 735.06, 34.14),
        ("lats", 300, 159.7, 500, whole, 467.2, 72.6),
        ("coding", 300, 43, 200, whole, 142_000, 444),
    ],
)
def test_means_and_maxima_are_those_of_the_source(
    name: str,
    num_programs: int,
    calls: float,
    most: int,
    prompt: Callable[[CallPlan, int], int],
    prompt_tokens: float,
    output_tokens: float,
) -> None:
    plans = drawn(name, num_programs)
    numbers = [sum(not call.member for call in plan.calls) for plan in plans]
    assert mean(numbers) == pytest.approx(calls, rel=0.05)
    assert max(numbers) <= most
    made = list(own_calls(plans))
    assert mean(prompt(*one) for one in made) == pytest.approx(prompt_tokens, rel=0.05)
    assert mean(call.num_output for call, _ in made) == pytest.approx(output_tokens, rel=0.05)


def test_the_longest_chats_have_eighty_calls() -> None:
    assert max(len(plan.calls) for plan in drawn("sharegpt", 1500)) == 80


def test_agents_have_light_tails() -> None:
    numbers = [len(plan.calls) for plan in drawn("agents", 1000)]
    assert mean(numbers) == pytest.approx(10.9, abs=0.15)
    assert stdev(numbers) == pytest.approx(2.1, abs=0.15)
    assert all(5 <= number <= 17 for number in numbers)


def test_agents_and_coding_wait_for_tools_and_chats_do_not() -> None:
    def waits(name: str) -> list[float]:
        return [call.wait_s for plan in drawn(name, 40) for call in plan.calls]

    assert not any(waits("sharegpt"))
    assert 0.8 < mean(waits("agents")) < 1.3
    assert max(waits("coding")) <= 120.0
    assert mean(waits("coding")) > 3.0


def test_agents_that_write_software_launch_others_in_44_of_100() -> None:
    plans = drawn("coding", 800)
    with_others = [plan for plan in plans if any(call.member for call in plan.calls)]
    assert len(with_others) / len(plans) == pytest.approx(0.44, abs=0.03)
    plan = with_others[0]
    number, call = next((n, one) for n, one in enumerate(plan.calls) if one.member)
    assert call.extends is None, "it begins with a text of its own"
    ends = [
        max(n for n, one in enumerate(plan.calls) if one.member == member)
        for member in {one.member for one in plan.calls} - {0}
    ]
    goes_on = next(one for n, one in enumerate(plan.calls) if n > number and not one.member)
    assert set(ends) <= set(goes_on.after), "the main agent waits for all of them"


def test_a_search_writes_five_children_at_once_and_judges_each() -> None:
    (plan,) = drawn("lats", 1)
    assert len(plan.calls) % 10 == 0
    for first in range(0, len(plan.calls), 10):
        children, judges = plan.calls[first : first + 5], plan.calls[first + 5 : first + 10]
        assert len({(one.extends, one.after, one.num_prompt) for one in children}) == 1
        assert [one.repeats for one in children] == [None, *[first] * 4]
        assert [one.extends for one in judges] == list(range(first, first + 5))
        assert [one.thread for one in children] == [one.thread for one in judges] == [0, 1, 2, 3, 4]
        if first:
            assert set(range(first - 5, first)) <= set(children[0].after), "when all are judged"


def test_the_mixture_has_equal_parts() -> None:
    kinds = [plan.kind for plan in drawn("mixed", 600)]
    assert set(kinds) == {"sharegpt", "bfcl", "lats"}
    assert all(kinds.count(kind) == pytest.approx(200, abs=40) for kind in set(kinds))


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_a_program_depends_on_its_seed_and_number_alone(name: str) -> None:
    workload = create_workload(name)
    assert workload.name == name
    few, many = draw_programs(workload, 2, seed=1), draw_programs(workload, 4, seed=1)
    assert few == many[:2]
    assert draw_programs(workload, 2, seed=2) != few


def test_an_unknown_workload_lists_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"'chat'.*agents.*sharegpt"):
        create_workload("chat")


def test_a_plan_counts_shared_and_repeated_text_once() -> None:
    plan = ProgramPlan(
        "test",
        (
            CallPlan(10, 4, num_shared=6),
            CallPlan(10, 5, num_shared=6, repeats=0),
            CallPlan(3, 1, extends=1, after=(1,)),
        ),
    )
    assert plan.prompt_lengths == (16, 16, 24)
    assert plan.num_prompt_tokens == 6 + 10 + 3
    assert plan.num_output_tokens == 10


@pytest.mark.parametrize(
    "calls",
    [
        (CallPlan(1, 1, after=(0,)),),
        (CallPlan(1, 1), CallPlan(1, 1, extends=0)),
        (CallPlan(1, 1), CallPlan(2, 1, repeats=0)),
        (CallPlan(0, 1),),
        (CallPlan(1, 0),),
        (),
    ],
)
def test_a_plan_that_cannot_be_played_is_a_bug(calls: tuple[CallPlan, ...]) -> None:
    with pytest.raises(AssertionError):
        ProgramPlan("test", calls)
