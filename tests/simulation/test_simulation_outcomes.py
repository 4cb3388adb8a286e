"""Summaries: percentiles, token latency, failures as infinity."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from math import inf

from quire.simulation.outcomes import ProgramOutcome, Spread, plain, spread, summarize

OUTCOME = ProgramOutcome(
    number=0,
    kind="test",
    arrived_s=2.0,
    ended_s=12.0,
    num_calls=3,
    num_output_tokens=20,
    service_s=4.0,
    waiting_s=1.0,
    num_prefilled_tokens=7,
    num_cached_tokens=5,
    num_preemptions=2,
)


def test_percentiles_are_values_that_occurred() -> None:
    assert spread(range(1, 101)) == Spread(mean=50.5, p50=50, p95=95, p99=99)
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0, 3.0)


def test_the_time_runs_from_the_scheduled_arrival() -> None:
    assert OUTCOME.response_s == 10.0
    assert OUTCOME.token_latency_s == 0.5


def test_a_summary_of_what_ended_and_what_failed() -> None:
    failed = replace(OUTCOME, number=1, ended_s=inf, error="lost")
    summary = summarize([OUTCOME, replace(OUTCOME, ended_s=22.0), failed])
    assert (summary.num_programs, summary.num_failed) == (3, 1)
    assert summary.makespan_s == 22.0
    assert summary.num_output_tokens == 40
    assert summary.tokens_per_s == 40 / 22
    assert (summary.num_calls, summary.num_preemptions) == (9, 6)
    assert summary.response_s == Spread(mean=inf, p50=20.0, p95=inf, p99=inf)
    assert summary.waiting_s.mean == 1.0


def test_nobody_ended() -> None:
    summary = summarize([replace(OUTCOME, ended_s=inf, error="lost")])
    assert (summary.makespan_s, summary.tokens_per_s) == (0.0, 0.0)


def test_json_has_null_for_infinity() -> None:
    text = json.dumps(plain([asdict(replace(OUTCOME, ended_s=inf))]), allow_nan=False)
    assert json.loads(text)[0]["ended_s"] is None
    assert json.loads(text)[0]["arrived_s"] == 2.0
