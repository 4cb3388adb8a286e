"""``Growth``: what a component returns while its query runs, so that others replace it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.programs.workflow.template.node import Node


@dataclass(frozen=True, slots=True)
class Growth:
    """``nodes``: components, joined with ``>>`` where that matters, of engines of the application.
    An input of theirs takes the output of the same name of another one of them, else the value in
    ``values``, else the input of the component that returns this. Together they give its outputs,
    by name; a value in ``values`` under an output's name is that output."""

    nodes: Sequence[Node]
    values: Mapping[str, Any] = field(default_factory=dict)
