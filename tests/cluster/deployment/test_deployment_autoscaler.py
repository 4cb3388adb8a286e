"""How a count is carried out, with keepers that only pretend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pretended_keepers import PretendedKeepers, Time, Told

from quire.cluster.deployment.autoscaler import Autoscaler
from quire.cluster.deployment.expansion import Expansion, KeyFileContents
from quire.cluster.deployment.loads import NodeLoad
from quire.cluster.deployment.process import ProcessState
from quire.cluster.deployment.rollout import Rollout
from quire.cluster.deployment.spec import ClusterSpec, ProcessGroup, Scaling


@dataclass(slots=True)
class Cluster:
    """One group of 1 to 3 nodes, of 8 requests each. ``requests``: by node; ``None``: no router
    answers."""

    keepers: PretendedKeepers = field(default_factory=PretendedKeepers)
    time: Time = field(default_factory=Time)
    requests: dict[str, int] | None = field(default_factory=dict)

    def autoscaler(self, sleep: Callable[[float], None] | None = None) -> Autoscaler:
        """Of a cluster that is up, with one node."""
        cluster = ClusterSpec(
            name="small",
            folder=Path("/"),
            nodes=(
                ProcessGroup("node", 1, 8101, scaling=Scaling(1, 3)),
                ProcessGroup("fixed", 1, 8201),
            ),
            routers=ProcessGroup("router", 1, 8000),
            ready_timeout_s=60.0,
        )
        expansion = Expansion(cluster, Path("/state"), KeyFileContents("c", "a"))
        now_s = self.time.now_s
        up = Rollout(self.keepers, Told(), ready_timeout_s=60.0, now_s=now_s, sleep=self.time.sleep)
        up.up(expansion)
        self.keepers.done.clear()
        return Autoscaler(
            expansion,
            self.keepers,
            self._loads,
            now_s=now_s,
            unix_s=lambda: 1_700_000_000.0,
            sleep=sleep or self.time.sleep,
        )

    def _loads(self, states: Mapping[str, ProcessState]) -> dict[str, NodeLoad]:
        if self.requests is None:
            return {}
        return {name: NodeLoad("ready", self.requests.get(name, 0), 0) for name in states}


def looks(autoscaler: Autoscaler, time: Time, seconds: float) -> None:
    end_s = time.now + seconds
    while time.now <= end_s:
        autoscaler.look()
        time.sleep(2.0)


def nodes(cluster: Cluster) -> list[str]:
    return sorted(name for name in cluster.keepers.found if name.startswith("node"))


def test_nodes_follow_the_load_and_routers_are_told() -> None:
    cluster = Cluster()
    scaler = cluster.autoscaler()
    cluster.requests = {"node-0": 8, "fixed-0": 100}
    looks(scaler, cluster.time, 30.0)
    assert cluster.keepers.done == []
    cluster.requests = {"node-0": 20}
    looks(scaler, cluster.time, 10.0)
    assert nodes(cluster) == ["node-0", "node-1", "node-2"]
    assert set(cluster.keepers.found["router-0"].nodes) == {*nodes(cluster), "fixed-0"}
    assert scaler.state.last == "node from 1 to 3"
    cluster.requests = {"node-0": 3}
    cluster.keepers.done.clear()
    looks(scaler, cluster.time, 300.0)
    assert nodes(cluster) == ["node-0"]
    assert cluster.keepers.done[-2:] == ["stop node-1", "stop node-2"]
    assert scaler.state.last == "node from 3 to 1"
    assert cluster.keepers.places == {"node-0", "fixed-0", "router-0"}


def test_without_a_router_that_answers_nothing_is_ended() -> None:
    cluster = Cluster(requests={"node-0": 20})
    scaler = cluster.autoscaler()
    looks(scaler, cluster.time, 10.0)
    cluster.requests = None
    looks(scaler, cluster.time, 1000.0)
    assert len(nodes(cluster)) == 3
    assert scaler.state.groups[0].num_requests is None


class EnoughSeen(BaseException):
    """Ends the loop, which survives every ``Exception``, in its sleep between two looks."""


def test_a_change_that_is_not_possible_is_told_and_tried_again() -> None:
    cluster = Cluster(PretendedKeepers(num_places=3), requests={"node-0": 20})
    told: list[str] = []
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        cluster.time.sleep(seconds)
        slept.append(seconds)
        told.append(scaler.state.last)
        if told[-1] == "node from 1 to 3":
            raise EnoughSeen
        if told[-1] == "no room":
            cluster.keepers.num_places = 5

    scaler = cluster.autoscaler(sleep)
    with pytest.raises(EnoughSeen):
        scaler.run()
    assert "no room" in told
    assert slept[told.index("no room")] == 30.0
    assert scaler.state.last == "node from 1 to 3"


def test_a_failure_of_another_kind_is_told_and_the_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(requests={"node-0": 20})
    told: list[str] = []

    def sleep(seconds: float) -> None:
        cluster.time.sleep(seconds)
        told.append(scaler.state.last)
        monkeypatch.undo()
        if told[-1] == "node from 1 to 3":
            raise EnoughSeen

    def broken(keepers: PretendedKeepers) -> dict[str, ProcessState]:
        raise KeyError("actor")

    scaler = cluster.autoscaler(sleep)
    monkeypatch.setattr(PretendedKeepers, "states", broken)
    with pytest.raises(EnoughSeen):
        scaler.run()
    assert told[0] == "KeyError: 'actor'"
    assert scaler.state.last == "node from 1 to 3"
