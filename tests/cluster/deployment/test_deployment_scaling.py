"""How many nodes a group is to have."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cluster.deployment.process import Phase, ProcessState
from quire.cluster.deployment.scaling import GroupScaler, present_counts
from quire.cluster.deployment.spec import ClusterSpec, ProcessGroup, Scaling

SCALING = Scaling(least=1, most=4, requests=8.0, up_after_s=10.0, down_after_s=60.0)


def state(name: str, phase: Phase = "ready") -> ProcessState:
    group = name.rpartition("-")[0]
    return ProcessState(
        name=name, group=group, kind="node", digest="", phase=phase, url="http://127.0.0.1:8101"
    )


def test_more_follow_when_they_were_needed_for_the_whole_period() -> None:
    scaler = GroupScaler(SCALING)
    assert scaler.count(1, 17, 0.0) == 1
    assert scaler.count(1, 40, 9.9) == 1
    assert scaler.count(1, 40, 10.0) == 3  # 17 requests, of 8 a node, were there all the time


def test_a_burst_that_is_over_starts_nothing() -> None:
    scaler = GroupScaler(SCALING)
    assert scaler.count(1, 30, 0.0) == 1
    assert scaler.count(1, 8, 5.0) == 1
    assert scaler.count(1, 30, 10.0) == 1
    assert scaler.count(1, 30, 20.0) == 4


def test_fewer_follow_when_they_were_enough_for_the_longer_period() -> None:
    scaler = GroupScaler(SCALING)
    assert scaler.count(4, 0, 0.0) == 4
    assert scaler.count(4, 12, 30.0) == 4
    assert scaler.count(4, 0, 59.0) == 4
    assert scaler.count(4, 0, 60.0) == 2  # 12 requests were there meanwhile
    assert scaler.count(2, 0, 61.0) == 2  # and now the period begins anew


def test_a_moment_with_work_for_all_begins_the_period_anew() -> None:
    scaler = GroupScaler(SCALING)
    looks = ((0, 0.0), (32, 30.0), (0, 60.0), (0, 90.0))
    assert [scaler.count(4, num_requests, at_s) for num_requests, at_s in looks] == [4] * 4
    assert scaler.count(4, 0, 120.0) == 1, "a minute behind the moment"


def test_a_change_of_direction_begins_anew() -> None:
    scaler = GroupScaler(SCALING)
    assert scaler.count(2, 0, 0.0) == 2
    assert scaler.count(2, 32, 59.0) == 2
    assert scaler.count(2, 32, 68.0) == 2
    assert scaler.count(2, 32, 69.0) == 4


@given(
    st.lists(st.tuples(st.integers(0, 100), st.floats(0.0, 100.0)), min_size=1, max_size=30),
    st.integers(1, 4),
)
def test_counts_stay_in_bounds_and_never_pass_what_is_asked_for(
    looks: list[tuple[int, float]], count: int
) -> None:
    scaler, now_s = GroupScaler(SCALING), 0.0
    for num_requests, pause_s in looks:
        now_s += pause_s
        asked = SCALING.bounded(math.ceil(num_requests / SCALING.requests))
        found = scaler.count(count, num_requests, now_s)
        assert min(count, asked) <= found <= max(count, asked)
        count = found


@pytest.mark.parametrize(("running", "count"), [(0, 2), (1, 1), (3, 3), (9, 4)])
def test_a_group_goes_on_with_what_runs(running: int, count: int) -> None:
    """Not with the number that it began with, and within the bounds of its file."""
    cluster = ClusterSpec(
        name="small",
        folder=Path("/"),
        nodes=(
            ProcessGroup("node", 2, 8101, scaling=SCALING),
            ProcessGroup("fixed", 2, 8201),
        ),
        routers=ProcessGroup("router", 1, 8000),
    )
    states = {f"node-{n}": state(f"node-{n}") for n in range(running)}
    states["node-leaving"] = state("node-leaving", phase="stopping")
    states["fixed-0"] = state("fixed-0")
    assert present_counts(cluster, states) == {"node": count}
