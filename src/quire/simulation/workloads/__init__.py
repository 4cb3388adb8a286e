"""Programs to simulate: plans, and generators of them with the figures of published traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from quire.core.errors import ConfigError
from quire.simulation.workloads.coding import Coding
from quire.simulation.workloads.conversations import SimulatedConversation, agents, bfcl, sharegpt
from quire.simulation.workloads.lats import TreeSearch
from quire.simulation.workloads.mixed import Mixed
from quire.simulation.workloads.plan import CallPlan, ProgramPlan
from quire.simulation.workloads.workload import Workload, draw_programs


def _mixed() -> Mixed:
    return Mixed((sharegpt(), bfcl(), TreeSearch()))


WORKLOADS: Mapping[str, Callable[[], Workload]] = MappingProxyType(
    {
        "sharegpt": sharegpt,
        "bfcl": bfcl,
        "lats": TreeSearch,
        "mixed": _mixed,
        "agents": agents,
        "coding": Coding,
    }
)


def create_workload(name: str) -> Workload:
    """The workload called ``name``.

    Raises:
        ConfigError: there is none.
    """
    if name not in WORKLOADS:
        raise ConfigError(
            f"no workload is called {name!r}: choose from {', '.join(sorted(WORKLOADS))}"
        )
    return WORKLOADS[name]()


__all__ = [
    "WORKLOADS",
    "CallPlan",
    "Coding",
    "Mixed",
    "ProgramPlan",
    "SimulatedConversation",
    "TreeSearch",
    "Workload",
    "create_workload",
    "draw_programs",
]
