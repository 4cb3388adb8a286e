"""How many calls the comparison with two real nodes takes a request to make."""

from __future__ import annotations

import pytest

from benchmarks.microserving.two_nodes import NUM_ALONE, alone_of, load_of, num_calls_of


@pytest.mark.parametrize(
    ("tried_s", "num_calls"),
    [(0.023, 3.0), (0.0215, 1.5), (0.02, 1.0), (0.015, 1.0)],
)
def test_a_request_makes_one_call_at_least(tried_s: float, num_calls: float) -> None:
    assert num_calls_of(0.02, tried_s) == pytest.approx(num_calls)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_requests_that_come_alone_are_others_than_those_of_the_round(seed: int) -> None:
    alone, load = alone_of(seed).drawn(), load_of(1.0, NUM_ALONE, seed).drawn()
    ratios = [one.at_s / other.at_s for one, other in zip(alone, load, strict=True)]
    assert min(ratios) < 0.99 * max(ratios), "the same pattern, at another rate"
