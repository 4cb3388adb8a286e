"""Plans the steps that make a cluster what its file describes.

Pure: takes the wanted processes and the running ones, returns waves of steps. The steps of a wave
are done together; a wave begins when everything of the one before is ready, so nodes of a group are
replaced one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from quire.cluster.deployment.process import ProcessSpec, ProcessState
from quire.core.errors import ConfigError

Action = Literal["start", "replace", "tell", "stop"]
"""``tell``: give other nodes to a router that goes on running."""


@dataclass(frozen=True, slots=True)
class RolloutStep:
    action: Action
    name: str
    reason: str
    spec: ProcessSpec | None = None


Wave = tuple[RolloutStep, ...]
States = Mapping[str, ProcessState]

_RUNNING = ("starting", "ready", "unready", "waiting")


def node_waves(wanted: Sequence[ProcessSpec], states: States) -> list[Wave]:
    """Return the waves that start missing nodes and then replace changed ones. Nodes that are to go
    stay until no router uses them (``leaving_waves``), unless a new one needs their port."""
    ports = {spec.port for spec in wanted}
    in_the_way = [
        RolloutStep("stop", state.name, f"another process gets its port {_port(state)}")
        for state in _leaving(wanted, states, "node")
        if _port(state) in ports
    ]
    return [*_wave(in_the_way), *_changes(wanted, states)]


def router_waves(wanted: Sequence[ProcessSpec], states: States) -> list[Wave]:
    """Return the same for routers; routers that are to go are ended last."""
    gone = [
        RolloutStep("stop", state.name, "the file has it no more")
        for state in _leaving(wanted, states, "router")
    ]
    return [*_changes(wanted, states), *_wave(gone)]


def leaving_waves(wanted: Sequence[ProcessSpec], states: States) -> list[Wave]:
    """Return the wave that ends nodes which no router uses any more."""
    gone = [
        RolloutStep("stop", state.name, "the file has it no more")
        for state in _leaving(wanted, states, "node")
    ]
    return _wave(gone)


def _changes(wanted: Sequence[ProcessSpec], states: States) -> list[Wave]:
    missing, silent, different, untold = [], [], [], []
    for spec in wanted:
        state = states.get(spec.name)
        if state is None:
            missing.append(RolloutStep("start", spec.name, "it does not run", spec))
        elif state.phase == "unknown" and not state.digest:
            # perhaps it is as it should be: a new keeper finds that out and goes on with it
            silent.append(RolloutStep("start", spec.name, "its keeper does not answer", spec))
        elif state.digest != spec.digest:
            different.append(RolloutStep("replace", spec.name, "it is configured otherwise", spec))
        elif not state.kept:
            missing.append(RolloutStep("start", spec.name, "it runs, and nothing keeps it", spec))
        elif state.phase not in _RUNNING:
            missing.append(RolloutStep("start", spec.name, f"it is {state.phase}", spec))
        elif state.nodes != spec.nodes:
            untold.append(RolloutStep("tell", spec.name, _other_nodes(spec, state), spec))
    one_by_one = ((step,) for step in [*silent, *_in_order(different, states)])
    return [*_wave(missing), *_wave(untold), *one_by_one]


def _in_order(steps: Sequence[RolloutStep], states: States) -> list[RolloutStep]:
    """Return ``steps`` so that each process finds its port free: if ports move up by one, the last
    process comes first.

    Raises:
        ConfigError: processes exchange their ports.
    """
    waiting, found = list(steps), []
    while waiting:
        taken = {_port(states[step.name]): step.name for step in waiting}
        for step in waiting:
            assert step.spec is not None
            if taken.get(step.spec.port, step.name) == step.name:
                break
        else:
            names = ", ".join(step.name for step in waiting)
            raise ConfigError(
                f"{names} would exchange their ports while they serve: move one group to free "
                "ports first, and to the others' afterwards"
            )
        waiting.remove(step)
        found.append(step)
    return found


def _other_nodes(spec: ProcessSpec, state: ProcessState) -> str:
    added = sorted(set(spec.nodes) - set(state.nodes))
    removed = sorted(set(state.nodes) - set(spec.nodes))
    moved = [name for name in state.nodes if spec.nodes.get(name) not in (None, state.nodes[name])]
    told = [
        f"{word} {', '.join(names)}"
        for word, names in (("with", added), ("without", removed), ("moved", moved))
        if names
    ]
    return f"its nodes change: {'; '.join(told)}"


def _leaving(wanted: Sequence[ProcessSpec], states: States, kind: str) -> list[ProcessState]:
    names = {spec.name for spec in wanted}
    return [
        state for name, state in sorted(states.items()) if state.kind == kind and name not in names
    ]


def _port(state: ProcessState) -> int:
    return int(state.url.rpartition(":")[2])


def _wave(steps: Sequence[RolloutStep]) -> list[Wave]:
    return [tuple(steps)] if steps else []
