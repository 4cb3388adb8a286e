"""A few of the rounds of ``fault_rounds``; ``make chaos-cluster`` runs a thousand."""

from __future__ import annotations

from fault_rounds import NUM_REQUESTS, rounds


async def test_answers_are_right_whatever_breaks() -> None:
    num_asked, num_whole = await rounds(15)
    assert num_asked == 15 * NUM_REQUESTS
    assert num_whole > 0.9 * num_asked, "streams that break off go on elsewhere"
