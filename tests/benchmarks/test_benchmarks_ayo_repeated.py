"""What the same documents save: the figures over queries that share nothing."""

from __future__ import annotations

from argparse import Namespace

import pytest

from benchmarks.ayo.repeated import APART, NOT_KEPT, SHARED, Spent, queries, reported

ARGUMENTS = Namespace(workflow=["naive-rag"], at_once=4, queries=8, pages=2, seed=0)


def test_times_are_ratios_within_a_round() -> None:
    found = reported(
        ARGUMENTS,
        {
            SHARED: [Spent(1.0, 0.5), Spent(4.0, 1.0)],
            NOT_KEPT: [Spent(1.0, 1.0), Spent(4.0, 2.0)],
            APART: [Spent(3.0, 2.0), Spent(8.0, 4.0)],
        },
    )
    times = found["times"]
    assert isinstance(times, dict)
    assert times["wall_s over apart"]["median"] == pytest.approx((3.0 + 2.0) / 2)
    assert times["wall_s over apart"]["low"] == pytest.approx(2.0)
    assert times["processor_s over apart"]["median"] == pytest.approx(4.0)
    assert times["processor_s over not kept"]["median"] == pytest.approx(2.0)
    seconds = found["seconds"]
    assert isinstance(seconds, dict)
    assert seconds[APART]["wall_s"]["median"] == pytest.approx(5.5)


def test_questions_of_a_round_differ_and_bring_the_same_documents() -> None:
    asked = queries(ARGUMENTS, 1)
    assert len({one["question"] for one in asked}) == len(asked) == 8
    assert all(one["documents"] == asked[0]["documents"] for one in asked)
    assert len(asked[0]["documents"]) == 2
    assert queries(ARGUMENTS, 2)[0]["documents"] != asked[0]["documents"]
