"""What is planned for a cluster: no processes, no Ray."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from small_processes import spec

from quire.cluster.deployment.plan import Wave, leaving_waves, node_waves, router_waves
from quire.cluster.deployment.process import Phase, ProcessSpec, ProcessState
from quire.core.errors import ConfigError

NODES = [spec("node-0", port=8101), spec("node-1", port=8102)]


def state(of: ProcessSpec, *, phase: Phase = "ready", kept: bool = True) -> ProcessState:
    return ProcessState(
        name=of.name,
        group=of.group,
        kind=of.kind,
        digest=of.digest,
        phase=phase,
        url=f"http://127.0.0.1:{of.port}",
        nodes=of.nodes,
        kept=kept,
    )


def running(*specs: ProcessSpec, **how: Any) -> dict[str, ProcessState]:
    return {one.name: state(one, **how) for one in specs}


def told(waves: list[Wave]) -> list[list[str]]:
    return [[f"{step.action} {step.name}" for step in wave] for wave in waves]


def changed(*specs: ProcessSpec) -> list[ProcessSpec]:
    return [spec(one.name, port=one.port, arguments=("other",)) for one in specs]


def test_what_is_missing_starts_together() -> None:
    assert told(node_waves(NODES, {})) == [["start node-0", "start node-1"]]


def test_what_is_as_it_should_be_is_left_alone() -> None:
    for phase in ("ready", "starting", "unready", "waiting"):
        assert node_waves(NODES, running(*NODES, phase=phase)) == []


def test_nodes_are_replaced_one_at_a_time_behind_what_is_new() -> None:
    wanted = [*changed(*NODES), spec("node-2", port=8103)]
    waves = node_waves(wanted, running(*NODES))
    assert told(waves) == [["start node-2"], ["replace node-0"], ["replace node-1"]]
    assert waves[1][0].spec == wanted[0]


@pytest.mark.parametrize("phase", ["stopped", "failed", "unknown", "stopping"])
def test_what_does_not_run_is_started(phase: Phase) -> None:
    waves = node_waves(NODES, running(NODES[0]) | running(NODES[1], phase=phase))
    assert told(waves) == [["start node-1"]]
    assert phase in waves[0][0].reason


def test_what_a_silent_keeper_has_gets_another_one_and_is_not_replaced() -> None:
    """Nobody knows how it is configured: only its keeper could tell."""
    states = running(*NODES)
    for name, one in states.items():
        states[name] = msgspec.structs.replace(one, phase="unknown", digest="")
    waves = node_waves([*NODES, spec("node-2", port=8103)], states)
    assert told(waves) == [["start node-2"], ["start node-0"], ["start node-1"]]
    assert waves[1][0].reason == "its keeper does not answer"


def test_what_nothing_keeps_gets_a_keeper() -> None:
    waves = node_waves(NODES, running(*NODES, kept=False))
    assert told(waves) == [["start node-0", "start node-1"]]
    assert "nothing keeps it" in waves[0][0].reason


def test_nodes_go_when_routers_know_it() -> None:
    states = running(*NODES)
    assert node_waves(NODES[:1], states) == []
    assert told(leaving_waves(NODES[:1], states)) == [["stop node-1"]]


def test_a_node_that_goes_does_so_first_where_another_one_gets_its_port() -> None:
    renamed = [spec("other-0", port=8101)]
    waves = node_waves(renamed, running(*NODES))
    assert told(waves) == [["stop node-0"], ["start other-0"]]
    assert "port 8101" in waves[0][0].reason


def test_where_ports_move_by_one_the_last_goes_first() -> None:
    moved = [spec("node-0", port=8102), spec("node-1", port=8103)]
    waves = node_waves(moved, running(*NODES))
    assert told(waves) == [["replace node-1"], ["replace node-0"]]


def test_an_exchange_of_ports_is_refused() -> None:
    crossed = [spec("node-0", port=8102), spec("node-1", port=8101)]
    with pytest.raises(ConfigError, match="node-0, node-1 would exchange their ports"):
        node_waves(crossed, running(*NODES))


def router(index: int, nodes: dict[str, str], **changes: object) -> ProcessSpec:
    return spec(f"router-{index}", port=8000 + index, nodes=nodes, **changes)


def test_a_router_that_is_configured_otherwise_is_replaced_and_needs_not_be_told() -> None:
    states = running(router(0, {"node-0": "http://a:1"}))
    other = router(0, {"node-1": "http://a:2"}, arguments=("other",))
    assert told(router_waves([other], states)) == [["replace router-0"]]


def test_routers_are_told_together_when_their_nodes_change() -> None:
    before = {"node-0": "http://a:1", "node-1": "http://a:2", "node-2": "http://a:3"}
    after = {"node-0": "http://b:1", "node-1": "http://a:2", "node-3": "http://a:4"}
    states = running(router(0, before), router(1, before))
    waves = router_waves([router(0, after), router(1, after)], states)
    assert told(waves) == [["tell router-0", "tell router-1"]]
    assert waves[0][0].reason == "its nodes change: with node-3; without node-2; moved node-0"
    assert router_waves([router(0, before), router(1, before)], states) == []


def test_routers_that_go_do_so_behind_the_others() -> None:
    waves = router_waves([router(0, {"a": "b"})], running(router(0, {}), router(1, {})))
    assert told(waves) == [["tell router-0"], ["stop router-1"]]
    assert node_waves([], running(router(0, {}))) == []
