"""Programs on real servers: how they are shortened, and which rates a server plays."""

from __future__ import annotations

from math import inf

from benchmarks.autellix.real_servers import (
    MAX_STEPS,
    STEP,
    RateSearch,
    draw_fitting,
    fits,
    shortened,
    throughputs,
)
from quire.simulation.workloads import create_workload
from quire.simulation.workloads.plan import CallPlan, ProgramPlan

PLAN = ProgramPlan(
    "kind",
    (
        CallPlan(160, 48, num_shared=32),
        CallPlan(7, 3, extends=0, after=(0,), wait_s=2.0, thread=1),
    ),
)


def test_lengths_are_shortened_and_all_else_stays() -> None:
    assert shortened(PLAN, 1 / 16) == ProgramPlan(
        "kind",
        (
            CallPlan(10, 3, num_shared=2),
            CallPlan(1, 1, extends=0, after=(0,), wait_s=2.0, thread=1),
        ),
    )


def test_a_program_whose_last_call_exceeds_the_context_is_left_out() -> None:
    assert fits(PLAN)
    assert not fits(ProgramPlan("kind", (*PLAN.calls, CallPlan(1780, 50, extends=1, after=(1,)))))
    workload = create_workload("sharegpt")
    drawn = draw_fitting(workload, 20, 1, share=1.0)
    assert len(drawn) == 20
    assert all(map(fits, drawn))
    assert drawn[:5] == draw_fitting(workload, 5, 1, share=1.0)


def played(latency_by_rate: dict[float, float], middle: float = 1.0) -> list[float]:
    """The rates that are played where the levels are 2 and 5 s."""
    search = RateSearch(2.0, 5.0, middle)
    rates = []
    while (rate := search.next_rate()) is not None:
        rates.append(round(rate, 3))
        search.add(latency_by_rate[rates[-1]])
    return rates


def test_rates_rise_until_the_largest_level_is_exceeded_then_fall_to_the_smallest() -> None:
    up, up_up, down = STEP, round(STEP**2, 3), round(1 / STEP, 3)
    assert played({1.0: 1.5, up: 3.0, up_up: inf}) == [1.0, up, up_up]
    assert played({1.0: inf, down: 2.5, round(STEP**-2, 3): 2.0}) == [1.0, down, round(STEP**-2, 3)]
    assert played({1.0: 3.0, up: inf, down: 1.0}) == [1.0, up, down]


def test_a_search_ends_where_no_rate_is_enough() -> None:
    fast, slow = RateSearch(2.0, 5.0, 1.0), RateSearch(2.0, 5.0, 1.0)
    for search, latency_s in ((fast, 0.1), (slow, inf)):
        while search.next_rate() is not None:
            search.add(latency_s)
    assert [*fast.means_s] == [*range(MAX_STEPS + 1)]
    assert [*slow.means_s] == [*range(0, -MAX_STEPS - 1, -1)]


def test_throughput_is_the_rate_at_the_level_over_that_of_each_vllm() -> None:
    def row(system: str, rate: float, mean_s: float | None) -> dict[str, object]:
        latency = {"mean": mean_s, "p95": mean_s}
        return {"system": system, "seed": 1, "rate": rate, "latency_s": latency}

    rows = [
        row("vLLM", 2.0, None),
        row("vLLM", 1.0, 2.0),  # given up at the next rate: 1.0 is the last that is known
        row("quire", 1.0, 1.0),
        row("quire", 4.0, 4.0),
    ]
    first, second, *_ = throughputs(rows, alone_s=1.0)
    assert first == {
        "latency": "mean, 2 x alone",
        "system": "vLLM",
        "programs/s": "1",
        "over vLLM": "1",
    }
    assert (second["programs/s"], second["over vLLM"]) == ("2", "2")
