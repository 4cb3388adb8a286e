"""``Pass``: one rule of the optimiser, and what it tells about a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from quire.programs.workflow.engines import Profile
from quire.programs.workflow.graph import PrimitiveGraph


@dataclass(frozen=True, slots=True)
class Note:
    """What a pass did to primitive ``where``, or why it did nothing."""

    rule: str
    where: str
    text: str
    applied: bool = True


class Rewritten(NamedTuple):
    graph: PrimitiveGraph
    notes: tuple[Note, ...] = ()


Profiles = Mapping[str, Profile]
"""By name of the engine."""

Pass = Callable[[PrimitiveGraph, Profiles], Rewritten]
"""Returns the same graph object if there is nothing to do. It may not change what a graph
computes."""
