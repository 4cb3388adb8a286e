"""Graphs that grow while they run: makes the graph that replaces a growth.

A growth comes from a function of the developer, which returns components, or from a component whose
number of primitives was not known when the graph was built. All its inputs are known when it runs,
so the graph that it becomes is built and optimised like that of a query of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import partial
from typing import Any

import msgspec

from quire.core.errors import InvalidArgument
from quire.programs.workflow.components.building import DONE_MARK
from quire.programs.workflow.components.growth import MAX_ROUNDS
from quire.programs.workflow.documents import checked_documents
from quire.programs.workflow.execution.functions import called
from quire.programs.workflow.execution.made_values import check_value, checked_value
from quire.programs.workflow.execution.scheduler import GrownGraph
from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.graphs.values import QUERY, Ref, ValueType, fits, plain
from quire.programs.workflow.optimizing.apart import built_apart
from quire.programs.workflow.optimizing.construction import NodeConfig, measured, p_graph
from quire.programs.workflow.optimizing.fixpoint import optimized
from quire.programs.workflow.optimizing.graph_cache import GraphCache
from quire.programs.workflow.passes import OptPass
from quire.programs.workflow.template.app import App
from quire.programs.workflow.template.growth import Growth


class TemplateGrower:
    """The ``Grower`` of the growths of one template. ``config``: as from ``App.configured``.
    ``cache``: graphs of the same shape. ``rounds``: how often each component has grown already on
    the way to this template. ``origin``: the application that has grown it."""

    def __init__(
        self,
        app: App,
        config: NodeConfig,
        passes: OptPass,
        cache: GraphCache | None,
        rounds: Mapping[str, int] | None = None,
        origin: App | None = None,
    ) -> None:
        self._app, self._config, self._passes, self._cache = app, config, passes, cache
        self._nodes = {node.name: node for node in app.nodes}
        self._rounds, self._origin = rounds or {}, origin or app

    async def grow(
        self, primitive: Primitive, inputs: Mapping[str, Any], again: Growth | None = None
    ) -> Mapping[str, Any] | GrownGraph:
        """Return the outputs by name, or the graph that gives them. ``again``: see ``Grower.grow``.

        Raises:
            InvalidArgument: the function returned something else, or has grown too often.
        """
        node = self._nodes[primitive.node]
        engine = self._app.engines[node.engine]
        if engine.kind != "growth":  # its size is known now
            same = copy(node)
            same.when, same.before = None, []
            same.config = self._config[node.name]
            return await self._built(primitive, Growth([same]), inputs)
        made: Any = again
        if again is None:
            threads = self._origin.function_threads
            given = await plain(inputs)
            made = await called(
                node.name, node.config["function"], engine.functions, given, threads
            )
        if not isinstance(made, Growth):
            return await _outputs(primitive, made)
        self._check_rounds(primitive)
        grown = await self._built(primitive, made, inputs)
        return grown._replace(growth=made)

    async def _built(
        self, primitive: Primitive, growth: Growth, inputs: Mapping[str, Any]
    ) -> GrownGraph:
        build = partial(self._grown, primitive, growth, inputs)
        return await built_apart(self._origin, self._passes, build)

    def _grown(self, primitive: Primitive, growth: Growth, inputs: Mapping[str, Any]) -> GrownGraph:
        inputs = {name.removeprefix(DONE_MARK): one for name, one in inputs.items()}
        app = App(self._app.name, self._app.engines.values())
        app.grow_template(growth.nodes)
        config = app.configured({})
        values = _values(primitive, app, growth, inputs)
        made = {name for node in app.nodes for name in node.outputs}
        wanted = [name for name in primitive.outputs if name in made]
        sizes = measured(app, values, config)
        graph = self._optimized(app, config, sizes, wanted)
        for name in primitive.outputs:
            if name not in made and name not in values:
                raise InvalidArgument(
                    f"{primitive.node}: its growth does not give {name!r}: let a component have "
                    "this output, or put it into the values",
                    param=primitive.node,
                )
        passed = {name: Ref(QUERY, name) for name in primitive.outputs if name not in made}
        _check_outputs(primitive, app, values)
        _check_effects(primitive, graph)
        rounds = {**self._rounds, primitive.node: self._rounds.get(primitive.node, 0) + 1}
        grower = TemplateGrower(app, config, self._passes, self._cache, rounds, self._origin)
        return GrownGraph(graph, passed, values, grower, None)

    def _optimized(
        self, app: App, config: NodeConfig, sizes: Mapping[str, int], wanted: list[str]
    ) -> PrimitiveGraph:
        profiles = tuple(app.profiles.items())
        key = (self._origin, profiles, _shape(app, config, sizes, wanted), self._passes.passes)
        found = None if self._cache is None else self._cache.find(key)
        if found is None:
            stored = {one.name: None for one in app.engines.values() if one.kind == "vectors"}
            built = p_graph(app, config, sizes, wanted, stored)
            found = optimized(built, app.profiles, self._passes)
            if self._cache is not None:
                self._cache.keep(key, found)
        return found.e_graph

    def _check_rounds(self, primitive: Primitive) -> None:
        most = self._config[primitive.node].get("max_rounds") or MAX_ROUNDS
        if self._rounds.get(primitive.node, 0) >= most:
            raise InvalidArgument(
                f"{primitive.node}: has grown {most} rounds and wants another one: raise "
                "max_rounds, or let its function end earlier",
                param=f"{primitive.node}.max_rounds",
            )


def _shape(app: App, config: NodeConfig, sizes: Mapping[str, int], wanted: list[str]) -> bytes:
    """Encode everything that determines the graph of a grown template."""
    nodes = [
        (
            node.name,
            node.engine,
            node.annotation,
            node.when,
            list(node.inputs.items()),
            list(node.outputs.items()),
            [later.name for later in node.before],
        )
        for node in app.nodes
    ]
    return msgspec.json.encode([nodes, config, sizes, wanted], order="sorted")


def _values(
    primitive: Primitive, app: App, growth: Growth, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Collect the inputs of the grown components by name, and the outputs known at once."""
    values: dict[str, Any] = {}
    wanted = dict(app.query_inputs)
    wanted |= {name: kind for name, kind in primitive.outputs.items() if name in growth.values}
    for name in growth.values:
        if name not in wanted:
            raise InvalidArgument(
                f"{primitive.node}: nothing takes the value {name!r} of its growth: leave it out, "
                "or give a component this input",
                param=primitive.node,
            )
    for name, kind in wanted.items():
        if name not in growth.values and name not in inputs:
            raise InvalidArgument(
                f"{primitive.node}: a component of its growth takes {name!r}, which nobody gives: "
                "put it into the values",
                param=primitive.node,
            )
        if name in growth.values:
            who = f"its function, as the value {name!r},"
            values[name] = check_value(primitive.node, who, kind, growth.values[name])
        else:
            values[name] = _checked(primitive, name, kind, inputs[name])
    return values


async def _outputs(primitive: Primitive, made: Any) -> dict[str, Any]:
    """Read the result of a function as outputs: a mapping of them, or the only one."""
    names = list(primitive.outputs)
    if not (isinstance(made, Mapping) and made.keys() == primitive.outputs.keys()):
        if len(names) > 1:
            raise InvalidArgument(
                f"{primitive.node}: its function returned {made!r:.80}: return a Growth, or a "
                f"mapping of {', '.join(names)}",
                param=primitive.node,
            )
        made = {names[0]: made}
    return {
        name: await checked_value(primitive.node, "its function", kind, made[name])
        for name, kind in primitive.outputs.items()
    }


def _checked(primitive: Primitive, name: str, kind: ValueType, value: Any) -> Any:
    if not fits(kind, value):
        raise InvalidArgument(
            f"{primitive.node}: {name!r} of its growth is {value!r:.80}, not {kind}: give a value "
            "of that type",
            param=primitive.node,
        )
    return checked_documents(value) if kind is ValueType.DOCUMENTS and value else value


def _check_outputs(primitive: Primitive, app: App, values: Mapping[str, Any]) -> None:
    """Refuse components that do not give the outputs in the types that the growth has promised."""
    made = {name: (node, kind) for node in app.nodes for name, kind in node.outputs.items()}
    for name, kind in primitive.outputs.items():
        node, given = made.get(name, (None, kind))
        if given is not kind and node is not None:
            raise InvalidArgument(
                f"{primitive.node} promises {name!r} as {kind}, but {node.name} of its growth has "
                f"it as {given}: make the types equal",
                param=primitive.node,
            )
        if node is not None and name in values:
            raise InvalidArgument(
                f"{primitive.node}: {node.name} of its growth and its values both give {name!r}: "
                "leave one out",
                param=primitive.node,
            )


def _check_effects(primitive: Primitive, graph: PrimitiveGraph) -> None:
    """Refuse effects that the growth did not declare: they would run beside others on the same
    thing."""
    for one in graph.primitives.values():
        undeclared = (one.reads | one.writes) - primitive.writes
        if undeclared:
            name = min(undeclared).removeprefix("effect:")
            raise InvalidArgument(
                f"{primitive.node}: {one.node} of its growth works on {name!r}, which the growth "
                f"does not declare: add it to effects of {primitive.node}",
                param=f"{primitive.node}.effects",
            )
