"""What the log says of a node that does not tell something."""

from __future__ import annotations

import pytest

from quire.cluster.nodes.complaints import MAX_TOLD, Complaints


def test_each_is_told_once_in_whatever_order_they_come(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints("node a tells no figures")
    for _ in range(3):
        complaints.tell("it cannot be reached")
        complaints.tell("it has closed the connection")
    assert [record.getMessage() for record in caplog.records] == [
        "node a tells no figures: it cannot be reached",
        "node a tells no figures: it has closed the connection",
    ]


def test_they_are_told_again_when_it_is_lost_again(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints("node a tells no figures")
    for _ in range(2):
        complaints.tell("it cannot be reached")
        complaints.settle()
    assert len(caplog.records) == 2


def test_a_node_with_many_different_ones_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    complaints = Complaints("node a tells no figures")
    for number in range(MAX_TOLD + 5):
        complaints.tell(f"error {number}")
    assert len(caplog.records) == MAX_TOLD
