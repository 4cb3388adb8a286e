"""``Run``: one run of a primitive before it is known to be needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.programs.workflow.graphs.primitives import Primitive


class Run:
    """A primitive that runs ahead. ``outputs``: None until it has ended. ``held``: what its runner
    holds for it. ``is_kept``: its primitive has started and uses it; that may be before the run has
    begun."""

    __slots__ = ("has_failed", "held", "inputs", "is_kept", "outputs", "primitive")

    def __init__(self, primitive: Primitive, inputs: Mapping[str, Any]) -> None:
        self.primitive, self.inputs = primitive, inputs
        self.outputs: Mapping[str, Any] | None = None
        self.has_failed = False
        self.held: Any = None
        self.is_kept = False
