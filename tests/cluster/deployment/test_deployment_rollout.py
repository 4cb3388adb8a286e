"""How a plan is carried out, by keepers that only pretend."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pretended_keepers import PretendedKeepers, Time, Told

from quire.cluster.deployment.expansion import Expansion, KeyFileContents
from quire.cluster.deployment.process import ProcessState
from quire.cluster.deployment.rollout import Rollout, planned_waves
from quire.cluster.deployment.spec import ClusterSpec, ProcessGroup
from quire.core.errors import EngineLost, PoolExhausted


def wanted(num_nodes: int = 2, num_routers: int = 1, argument: str = "a") -> Expansion:
    cluster = ClusterSpec(
        name="small",
        folder=Path("/"),
        nodes=(ProcessGroup("node", num_nodes, 8101, (argument,)),),
        routers=ProcessGroup("router", num_routers, 8000),
    )
    return Expansion(cluster, Path("/state"), KeyFileContents("c", "a"))


def rollout(keepers: PretendedKeepers, told: Told | None = None) -> Rollout:
    time = Time()
    return Rollout(
        keepers, told or Told(), ready_timeout_s=60.0, now_s=time.now_s, sleep=time.sleep
    )


def test_nodes_come_up_before_the_router_that_is_told_of_them() -> None:
    keepers, told = PretendedKeepers(), Told()
    rollout(keepers, told).up(wanted())
    assert keepers.done == ["assign node-0", "assign node-1", "assign router-0"]
    assert told.changes.index("node-1 ready") < told.changes.index("router-0 starting")
    assert keepers.found["router-0"].nodes == {
        "node-0": "http://127.0.0.1:8101",
        "node-1": "http://127.0.0.1:8102",
    }
    assert {state.phase for state in keepers.found.values()} == {"ready"}


def test_done_again_it_does_nothing() -> None:
    keepers = PretendedKeepers()
    rollout(keepers).up(wanted())
    done = list(keepers.done)
    rollout(keepers).up(wanted())
    assert keepers.done == done
    assert planned_waves(wanted(), keepers.states()) == []


def test_a_change_rolls_through_the_nodes() -> None:
    keepers = PretendedKeepers()
    rollout(keepers).up(wanted())
    keepers.done.clear()
    rollout(keepers).up(wanted(argument="b"))
    assert keepers.done == ["stop node-0", "assign node-0", "stop node-1", "assign node-1"]


def test_a_node_whose_keeper_does_not_answer_keeps_its_place_at_the_routers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keepers = PretendedKeepers()
    rollout(keepers).up(wanted())
    looked, states = 0, PretendedKeepers.states

    def silent_once(keepers: PretendedKeepers) -> dict[str, ProcessState]:
        """Leave out the answer of one keeper at the second look, when the nodes are as they are
        wanted."""
        nonlocal looked
        looked += 1
        found = states(keepers)
        if looked == 2:
            found["node-1"] = msgspec.structs.replace(
                found["node-1"], phase="unknown", url="http://unknown:0"
            )
        return found

    monkeypatch.setattr(PretendedKeepers, "states", silent_once)
    keepers.done.clear()
    rollout(keepers).up(wanted())
    assert looked > 2
    assert keepers.done == []
    looked = 0
    keepers.found["router-0"] = msgspec.structs.replace(keepers.found["router-0"], nodes={})
    with pytest.raises(EngineLost, match="the keeper of node-1 does not answer"):
        rollout(keepers).up(wanted())


def test_nodes_leave_when_the_router_has_been_told() -> None:
    keepers = PretendedKeepers()
    rollout(keepers).up(wanted(num_nodes=3))
    keepers.done.clear()
    expected = planned_waves(wanted(num_nodes=1), keepers.states())
    told = Told()
    rollout(keepers, told).up(wanted(num_nodes=1))
    assert keepers.done == ["assign router-0", "stop node-1", "stop node-2"]
    assert told.waves == expected
    assert keepers.places == {"node-0", "router-0"}


def test_nodes_that_a_router_still_uses_stay() -> None:
    keepers = PretendedKeepers()
    rollout(keepers).up(wanted(num_nodes=2))
    keepers.deaf.add("router-0")
    keepers.done.clear()
    with pytest.raises(EngineLost, match="router-0 is not ready"):
        rollout(keepers).up(wanted(num_nodes=1))
    assert keepers.done == ["assign router-0"]


def test_without_room_nothing_is_touched() -> None:
    keepers = PretendedKeepers(num_places=3)
    rollout(keepers).up(wanted())
    done = list(keepers.done)
    with pytest.raises(PoolExhausted):
        rollout(keepers).up(wanted(num_nodes=3, argument="b"))
    assert keepers.done == done


def test_one_that_is_never_ready_holds_up_the_rest() -> None:
    keepers = PretendedKeepers()
    rollout(keepers).up(wanted())
    keepers.never.add("node-2")
    keepers.done.clear()
    with pytest.raises(EngineLost, match=r"node-2 is not ready after 60 s \(ready_timeout\)"):
        rollout(keepers).up(wanted(num_nodes=3, argument="b"))
    assert keepers.done == ["assign node-2"]


def test_one_that_ends_again_and_again_is_given_up_with_its_last_words() -> None:
    keepers = PretendedKeepers(broken={"node-1"})
    with pytest.raises(EngineLost, match=r"node-1 does not become ready.*\n.*no such model"):
        rollout(keepers).up(wanted())
    assert "assign router-0" not in keepers.done


def test_down_ends_routers_before_nodes() -> None:
    keepers = PretendedKeepers()
    rollout(keepers).up(wanted())
    keepers.done.clear()
    rollout(keepers).down()
    assert keepers.done == ["stop router-0", "stop node-0", "stop node-1"]
    assert keepers.found == {}
    assert keepers.places == set()
    rollout(keepers).down()  # there is nothing left to do


def test_a_lost_keeper_does_not_hold_up_down_for_ever() -> None:
    keepers = PretendedKeepers()
    rollout(keepers).up(wanted())
    keepers.never.add("node-1")
    with pytest.raises(EngineLost, match="node-1 has not ended after 60 s"):
        rollout(keepers).down()
