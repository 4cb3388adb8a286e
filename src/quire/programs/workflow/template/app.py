"""The template of an application: components joined with ``>>``, as its developer writes them.

Owns what can be checked without a query. The graph of a query is built by ``construction``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from quire.core.errors import InvalidArgument
from quire.programs.capabilities import Capabilities
from quire.programs.workflow.components import COMPONENTS, Component
from quire.programs.workflow.engines.engine import Engine, Profile, check_keys
from quire.programs.workflow.engines.tools_elsewhere import McpTools, ProgramTool
from quire.programs.workflow.graphs.values import ValueType
from quire.programs.workflow.passes import OptPass, read_passes
from quire.programs.workflow.speculation.experience import Experience
from quire.programs.workflow.template.checking import (
    check_buildable,
    check_names,
    check_shapes,
    check_types,
    ordered,
)
from quire.programs.workflow.template.function_threads import FunctionThreads
from quire.programs.workflow.template.node import MAX_NAME_CHARS, Node

MAX_NODES = 256
MAX_PASSES_AT_ONCE = 4
PASSES_LIMIT_S = 60.0


class App:
    """An application: its engines and its template.

    ::

        app = App("echo", [Engine("llm")])
        app.update_template([first, second])

    ``passes``: what optimises its queries, unless a query brings its own; by default the standard
    passes.
    """

    def __init__(
        self,
        name: str,
        engines: Iterable[Engine],
        description: str = "",
        *,
        passes: OptPass | None = None,
    ) -> None:
        _check_address(name)
        self.name = name
        self.description = description
        self.passes = read_passes(passes) or OptPass()
        self.engines: dict[str, Engine] = {}
        for engine in engines:
            if not isinstance(engine, Engine):
                raise InvalidArgument(
                    f"{name}: {engine!r:.80} is among the engines: give a list of Engine",
                    param="engines",
                )
            if engine.name in self.engines:
                raise InvalidArgument(
                    f"{name}: two engines are named {engine.name!r}: give one another name",
                    param="engines",
                )
            self.engines[engine.name] = engine
        self.nodes: tuple[Node, ...] = ()
        """The components, each after those that it needs."""
        self.version = 0
        """Rises with each ``update_template``, so that no graph of an old template is reused."""
        self.experience = Experience()
        self.function_threads = FunctionThreads()
        self.pass_threads = FunctionThreads(MAX_PASSES_AT_ONCE)
        self.passes_limit_s = PASSES_LIMIT_S
        """Seconds that the passes of a developer may take for one graph."""

    def update_template(self, nodes: Sequence[Node]) -> None:
        """Make ``nodes``, with the order that ``>>`` has given them, the application's template.

        Raises:
            InvalidArgument: the template can never become a graph: an unknown engine or part, two
                components of one name, an input whose types differ, a splittable component without
                a schema, a configuration that no query can have, an order that closes a cycle, two
                components that work on the same thing without an order.
        """
        in_order = self._checked(nodes)
        check_buildable(in_order, self.engines, self.component, _query_inputs(in_order))
        self._replace(in_order)

    def grow_template(self, nodes: Sequence[Node]) -> None:
        """Make ``nodes``, which a growth has returned and whose graph is built at once, the
        template.

        Raises:
            InvalidArgument: see ``update_template``; what only the graph shows is not checked.
        """
        self._replace(self._checked(nodes))

    def _checked(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Check each of ``nodes`` by itself and with the others; return them in their order."""
        if isinstance(nodes, Node) or not all(isinstance(node, Node) for node in nodes):
            raise InvalidArgument(
                f"{self.name}: its template is {nodes!r:.80}: give a list of Node", param="nodes"
            )
        if not 1 <= len(nodes) <= MAX_NODES:
            raise InvalidArgument(
                f"{self.name}: {len(nodes)} components: give 1 to {MAX_NODES}", param="nodes"
            )
        check_names(nodes)
        check_shapes(nodes, self.component)
        for node in nodes:
            self.component(node).check(node, self.engines.get(node.engine))
            for later in node.before:
                if later not in nodes:
                    raise _not_there(node, later, nodes)
        check_types(nodes)
        return ordered(nodes)

    def _replace(self, nodes: tuple[Node, ...]) -> None:
        self.nodes = nodes
        self.version += 1
        self.experience = Experience()

    def component(self, node: Node) -> Component:
        """Return the ``Component`` that makes the primitives of ``node``.

        Raises:
            InvalidArgument: it names no engine of the application.
        """
        if node.engine == "condition":
            return COMPONENTS["condition"]
        engine = self.engines.get(node.engine)
        if engine is None:
            known = ", ".join([*self.engines, "condition"])
            raise InvalidArgument(
                f"{node.name}: unknown engine {node.engine!r}; the engines are {known}: name one "
                "of them, or add it to the App",
                param=f"{node.name}.engine",
            )
        return COMPONENTS[engine.kind]

    @property
    def used_engines(self) -> list[Engine]:
        """The engines that its components name; all, if one of them may return others."""
        used = {node.engine for node in self.nodes}
        if any(self.engines[name].kind == "growth" for name in used if name in self.engines):
            return list(self.engines.values())
        return [engine for name, engine in self.engines.items() if name in used]

    @property
    def needs_model(self) -> bool:
        """Whether a query may need a model of the node, for a component or in a program that it
        calls."""
        return any(
            (engine.kind == "llm" and engine.endpoint is None)
            or isinstance(engine.tools_elsewhere, ProgramTool)
            for engine in self.used_engines
        )

    @property
    def reaches(self) -> Capabilities:
        """The capabilities of the program of a query, beside the engines of the node: its MCP
        servers, or everything if it calls programs, whose own manifests restrict them."""
        tools = [engine.tools_elsewhere for engine in self.engines.values()]
        servers = [one for one in tools if isinstance(one, McpTools)]
        if any(isinstance(one, ProgramTool) for one in tools):
            return Capabilities(("*",), ("*",), ("*",), ("*",))
        hosts = {urlsplit(one.server).hostname or "" for one in servers if one.is_url}
        names = {one.server for one in servers if not one.is_url}
        return Capabilities(tuple(sorted(hosts)), (), (), tuple(sorted(names)))

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """The profiles by the engine's name."""
        return {name: engine.profile for name, engine in self.engines.items()}

    @property
    def query_inputs(self) -> Mapping[str, ValueType]:
        """The inputs that no component produces: each query brings them."""
        return _query_inputs(self.nodes)

    @property
    def results(self) -> Mapping[str, ValueType]:
        """The outputs that no component takes: the answer of a query."""
        taken = {name for node in self.nodes for name in node.inputs}
        taken |= {node.when for node in self.nodes if node.when}
        return {
            name: kind
            for node in self.nodes
            for name, kind in node.outputs.items()
            if name not in taken and kind is not ValueType.DONE
        }

    def configured(
        self, config: Mapping[str, Mapping[str, Any]]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Return the configuration of every component, with the changes of the query.

        Raises:
            InvalidArgument: a component or key that does not exist or that no query may change, or
                a value with which the component could not be in a template.
        """
        nodes = {node.name: node for node in self.nodes}
        check_keys(f"the configuration of {self.name}", config, frozenset(nodes))
        for name, changes in config.items():
            if not isinstance(changes, Mapping):
                raise InvalidArgument(
                    f"the configuration of {name} is {changes!r:.80}: give an object", param=name
                )
            component = self.component(nodes[name])
            known = component.changeable(nodes[name])
            check_keys(f"the configuration of {name}", changes, known, f"{name}.")
            changed = copy(nodes[name])
            changed.config = MappingProxyType({**changed.config, **changes})
            component.check(changed, self.engines.get(changed.engine))
            nodes[name] = changed
        return {name: dict(node.config) for name, node in nodes.items()}


def _check_address(name: str) -> None:
    """Refuse a name of an application that cannot stand in the address of its queries."""
    if (
        not 1 <= len(name) <= MAX_NAME_CHARS
        or "/" in name
        or name in (".", "..")
        or not name.isprintable()
    ):
        raise InvalidArgument(
            f"an application is named {name!r:.80}: clients ask at /v1/workflows/NAME/query, so "
            f"use 1 to {MAX_NAME_CHARS} printable characters without '/'",
            param="name",
        )


def _query_inputs(nodes: Sequence[Node]) -> Mapping[str, ValueType]:
    made = {name for node in nodes for name in node.outputs}
    return {name: kind for node in nodes for name, kind in node.inputs.items() if name not in made}


def _not_there(node: Node, later: Node, nodes: Sequence[Node]) -> InvalidArgument:
    """Return the error for ``node >> later`` where ``later`` is not one of ``nodes``."""
    remedy = "add it"
    if any(one.name == later.name for one in nodes):
        remedy = (
            f"the {later.name} in it is another component; a component keeps what was joined to "
            f"it, so make {node.name} anew for this template"
        )
    return InvalidArgument(
        f"{node.name} >> {later.name}: {later.name} is not in the template: {remedy}",
        param=later.name,
    )
