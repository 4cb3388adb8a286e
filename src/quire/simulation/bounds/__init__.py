"""Policies that only a simulation can have: they read the programs' future work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from quire.core.policy import Policy
from quire.simulation.bounds.gittins import Gittins
from quire.simulation.bounds.srpt import ShortestRemaining
from quire.simulation.work import WorkTable

Bound = Callable[[WorkTable, Sequence[float]], Policy]

BOUNDS: Mapping[str, Bound] = MappingProxyType(
    {
        "srpt": lambda works, samples: ShortestRemaining(works),
        "gittins": Gittins,
    }
)
"""How each bound is made: from the work of the programs that live, and samples of the work of the
workload's programs."""

__all__ = ["BOUNDS", "Bound", "Gittins", "ShortestRemaining"]
