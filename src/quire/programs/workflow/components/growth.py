"""Growth: a component that decides, while its query runs, which components replace it."""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.errors import InvalidArgument
from quire.programs.workflow.components.building import ComponentSite, Value
from quire.programs.workflow.components.component import Component, NodeShape
from quire.programs.workflow.components.flow import check_effects, check_parameters, function_of
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.graphs.primitives import Op
from quire.programs.workflow.graphs.values import Ref, ValueType

MAX_ROUNDS = 16


class GrowingComponent(Component):
    """A function of the engine, called with the inputs by name. It returns the outputs, or a
    ``Growth``: components that produce them.

    ``max_rounds``: how deep growths of a component of this name may be nested. ``effects``: what
    its components may change, as names of tools' effects and of engines of kind vectors; other
    effects are refused.
    """

    config = frozenset({"function", "max_rounds", "effects"})

    def changeable(self, node: NodeShape) -> frozenset[str]:
        return frozenset({"max_rounds"})

    def check(self, node: NodeShape, engine: Engine | None) -> None:
        super().check(node, engine)
        given = [name for name, kind in node.inputs.items() if kind is not ValueType.DONE]
        check_parameters(node.name, function_of(node, engine), given)
        check_effects(node)
        if node.annotation is not None:
            raise InvalidArgument(
                f"{node.name}: a growth is not {node.annotation}: drop the annotation, and give it "
                "to the components that it returns",
                param=f"{node.name}.annotation",
            )
        if not node.outputs:
            raise InvalidArgument(
                f"{node.name}: a growth needs an output: name one", param=f"{node.name}.outputs"
            )

    def build(self, site: ComponentSite) -> Mapping[str, Value]:
        site.count("max_rounds", MAX_ROUNDS)
        named = site.config.get("effects", ())
        site.stored.update(dict.fromkeys(named))
        made = site.add(
            Op.GROWTH, "", site.arguments(), site.outputs,
            writes=frozenset(named) | {f"effect:{one}" for one in named},
        )  # fmt: skip
        return {name: Value(Ref(made.id, name), kind) for name, kind in site.outputs.items()}
