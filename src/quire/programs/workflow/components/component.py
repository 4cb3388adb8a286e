"""``Component``: the rules for nodes of one kind, and the primitives that they become.

One subclass per kind. Components have no state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from quire.core.errors import InvalidArgument
from quire.programs.workflow.components.building import ComponentSite, Value
from quire.programs.workflow.engines.engine import Engine, check_keys
from quire.programs.workflow.graphs.values import ValueType


class NodeShape(Protocol):
    """The part of a ``Node`` that a component reads."""

    @property
    def name(self) -> str: ...
    @property
    def annotation(self) -> str | None: ...
    @property
    def config(self) -> Mapping[str, object]: ...
    @property
    def inputs(self) -> Mapping[str, ValueType]: ...
    @property
    def outputs(self) -> Mapping[str, ValueType]: ...


Types = tuple[str, ...]
"""Types in the order of their names."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The types that a component may take and produce; ``None``: any. ``noun``: what messages call
    it. ``waits``: it may also take the ends of effects."""

    noun: str = "a component"
    takes: tuple[Types, ...] | None = None
    makes: tuple[Types, ...] | None = None
    waits: bool = False

    def misfit(self, node: NodeShape) -> str | None:
        """Return the side of ``node`` whose types do not fit, or None."""
        given = [one for one in node.inputs.values() if not self.waits or one != ValueType.DONE]
        if self.takes is not None and tuple(sorted(map(str, given))) not in self.takes:
            return "inputs"
        made = tuple(sorted(map(str, node.outputs.values())))
        return "outputs" if self.makes is not None and made not in self.makes else None

    def __str__(self) -> str:
        said = [
            f"{verb} {' or '.join(_told(one) for one in types)}"
            for verb, types in (("takes", self.takes), ("produces", self.makes))
            if types is not None
        ]
        return f"{self.noun} {' and '.join(said)}"


def _told(types: Types) -> str:
    return f"{types[0]} twice" if len(types) > len(set(types)) else " and ".join(types)


class Component(ABC):
    config: ClassVar[frozenset[str]]
    """The configuration that it reads; no other is accepted."""
    shape: ClassVar[Shape] = Shape()
    splittable: ClassVar[bool] = False

    def changeable(self, node: NodeShape) -> frozenset[str]:
        """The configuration of ``node`` that a query may change; only a developer sets the rest."""
        return self.config

    def shape_of(self, node: NodeShape) -> Shape:
        """Return the types that ``node`` may take and produce with its configuration."""
        return self.shape

    def check(self, node: NodeShape, engine: Engine | None) -> None:
        """Refuse a node that can never become primitives, whatever the query. Its types fit
        ``shape_of``.

        Raises:
            InvalidArgument: configuration or an annotation that the component does not have.
        """
        check_keys(f"the configuration of {node.name}", node.config, self.config, f"{node.name}.")
        if node.annotation == "splittable" and not self.splittable:
            raise InvalidArgument(
                f"{node.name}: only the output of a model can be splittable: drop the annotation",
                param=f"{node.name}.annotation",
            )

    def check_given(self, node: NodeShape, given: Mapping[str, Any]) -> None:
        """Refuse inputs of the query that the engine could never process. ``given``: these inputs
        of the node by name, of the right types.

        Raises:
            InvalidArgument: the message names the input.
        """
        return

    @abstractmethod
    def build(self, site: ComponentSite) -> Mapping[str, Value]:
        """Make the primitives of one query in ``site``; return the outputs by name."""
