"""A few of the rounds of ``process_faults``; ``make chaos-processes`` runs a hundred."""

from __future__ import annotations

import pytest
from process_faults import Fault, NotMet, check_met, rounds

FAULTS = (
    Fault("leave", "client", "before_fence"),
    Fault("cut", "receiver", "mid_layer"),
    Fault("stop", "sender", "before_fence"),
    Fault("kill", "receiver", "after_remote_send"),
)


@pytest.mark.e2e
@pytest.mark.timeout(600)
async def test_answers_of_real_processes_are_right_whatever_breaks() -> None:
    done = await rounds(len(FAULTS), num_nodes=2, faults=FAULTS)
    assert sum(done.outcomes.values()) == len(FAULTS)


@pytest.mark.parametrize(
    "text",
    [
        "no engine takes this request now: node-0 dead (no answer to /health within 1 s), "
        "node-1 dead (no answer to /health within 1 s); try again",
        "node node-0 is lost: no answer to /health within 1 s; no engine takes this request now: "
        "node-0 dead (no answer to /health within 1 s); try again",
    ],
)
def test_a_round_in_which_no_node_at_all_answers_does_not_count(text: str) -> None:
    with pytest.raises(NotMet):
        check_met(text)


@pytest.mark.parametrize(
    "text",
    [
        "node node-0 is lost: no answer to /health within 1 s",
        "no engine takes this request now: node-0 dead (no answer to /health within 1 s), "
        "node-1 full; try again",
    ],
)
def test_a_round_that_loses_its_own_victim_alone_counts(text: str) -> None:
    check_met(text)
