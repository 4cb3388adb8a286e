"""Queries over paced engines: what was calibrated stays so, and every query ends."""

from __future__ import annotations

import pytest

from benchmarks.ayo.paced import PASSES, play, poisson
from benchmarks.ayo.stated import Stated


def test_the_unoptimised_query_takes_what_the_paper_says() -> None:
    assert round(play(PASSES["none"], "fcfs", [0.0], Stated()).mean_s, 1) == 4.1


@pytest.mark.parametrize("policy", ["fcfs", "invocation", "topology", "critical_path"])
def test_queries_end_under_every_policy_and_in_the_same_way_each_time(policy: str) -> None:
    arrivals_s = poisson(0.8, 5)
    found = play(PASSES["all"], policy, arrivals_s, Stated(), lengths=(4, 20))
    assert found == play(PASSES["all"], policy, arrivals_s, Stated(), lengths=(4, 20))
    assert 0 < found.mean_s <= found.p99_s


def test_what_is_assumed_can_be_varied() -> None:
    half, double = (play(PASSES["all"], "fcfs", [0.0], Stated().scaled(f)) for f in (0.5, 2.0))
    assert half.mean_s < double.mean_s
    assert Stated().scaled(2.0).encode_s == Stated().encode_s, "that is of the paper"
