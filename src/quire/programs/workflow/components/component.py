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


@dataclass(frozen=True, slots=True)
class Shape:
    """The types that a component takes and produces, in the order of their names; ``None``: any."""

    inputs: tuple[str, ...] | None = None
    outputs: tuple[str, ...] | None = None


class Component(ABC):
    config: ClassVar[frozenset[str]]
    """The configuration that it reads; no other is accepted."""
    shape: ClassVar[Shape] = Shape()
    splittable: ClassVar[bool] = False

    def changeable(self, node: NodeShape) -> frozenset[str]:
        """The configuration of ``node`` that a query may change; only a developer sets the rest."""
        return self.config

    def check(self, node: NodeShape, engine: Engine | None) -> None:
        """Refuse a node that can never become primitives, whatever the query.

        Raises:
            InvalidArgument: configuration, types or an annotation that the component does not have.
        """
        check_keys(f"the configuration of {node.name}", node.config, self.config, f"{node.name}.")
        if node.annotation == "splittable" and not self.splittable:
            raise InvalidArgument(
                f"{node.name}: only the output of a model can be splittable: drop the annotation",
                param=f"{node.name}.annotation",
            )
        for side, wanted, given in (
            ("inputs", self.shape.inputs, node.inputs),
            ("outputs", self.shape.outputs, node.outputs),
        ):
            kinds = [str(kind) for kind in given.values()]
            if wanted is not None and sorted(kinds) != list(wanted):
                raise InvalidArgument(
                    f"{node.name}: its {side} are {', '.join(kinds) or 'none'}; an engine of this "
                    f"kind has {', '.join(wanted)}",
                    param=f"{node.name}.{side}",
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
