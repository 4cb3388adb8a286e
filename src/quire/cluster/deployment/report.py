"""The report on a cluster: its processes, the load of its nodes, and how it is scaled.

Owns how these are joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.cluster.deployment.loads import NodeLoad, node_loads
from quire.cluster.deployment.process import ProcessState
from quire.cluster.deployment.scaling import ScalingState


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """``ray``: the state of Ray, in words. ``loads``: the nodes' loads by name."""

    name: str
    ray: str
    processes: tuple[ProcessState, ...]
    loads: Mapping[str, NodeLoad]
    scaling: ScalingState | None = None

    @property
    def is_whole(self) -> bool:
        return bool(self.processes) and all(
            state.phase == "ready" and state.kept for state in self.processes
        )

    def document(self) -> dict[str, Any]:
        """Return the report as plain values."""
        processes = []
        for state in self.processes:
            load = self.loads.get(state.name)
            told: dict[str, Any] = msgspec.to_builtins(state)
            if load is not None:
                told |= {"num_running": load.num_running, "num_waiting": load.num_waiting}
            processes.append(told)
        found: dict[str, Any] = {"name": self.name, "ray": self.ray, "processes": processes}
        if self.scaling is not None:
            found["autoscale"] = msgspec.to_builtins(self.scaling)
        return found


def report(
    name: str,
    ray: str,
    states: Mapping[str, ProcessState],
    admin_key: str | None,
    *,
    scaling: ScalingState | None = None,
) -> ClusterReport:
    ordered = sorted(
        states.values(), key=lambda one: (one.kind, one.group, len(one.name), one.name)
    )
    return ClusterReport(name, ray, tuple(ordered), node_loads(states, admin_key), scaling)
