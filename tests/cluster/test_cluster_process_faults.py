"""A few of the rounds of ``process_faults``; ``make chaos-processes`` runs a hundred."""

from __future__ import annotations

import pytest
from process_faults import Fault, rounds

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
