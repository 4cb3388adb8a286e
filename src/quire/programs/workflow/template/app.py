"""The template of an application: components joined with ``>>``, as its developer writes them.

Owns what can be checked without a query. The graph of a query is built by ``construction``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import urlsplit

from quire.core.errors import InvalidArgument
from quire.programs.capabilities import Capabilities
from quire.programs.workflow.components import COMPONENTS, Component
from quire.programs.workflow.engines.engine import Engine, Profile, check_keys
from quire.programs.workflow.engines.tools_elsewhere import McpTools, ProgramTool
from quire.programs.workflow.graphs.values import LISTS, ValueType, value_type
from quire.programs.workflow.passes import OptPass
from quire.programs.workflow.speculation.experience import Experience
from quire.programs.workflow.template.function_threads import FunctionThreads

Annotation = Literal["batchable", "splittable"]
ANNOTATIONS: tuple[str | None, ...] = (None, "batchable", "splittable")
MAX_NODES = 256
MAX_NAME_CHARS = 256
"""The longest name of an application, a component, an input or an output: requests have them."""
MAX_PASSES_AT_ONCE = 4
PASSES_LIMIT_S = 60.0


class Node:
    """A component of a workflow.

    ``engine``: the name of an ``Engine``, or ``condition``. ``inputs`` and ``outputs``: types by
    name (``text``, ``texts``, ``documents``, ``vectors``, ``boolean``, ``object``, ``done``). An
    input takes the output of the same name of another component, or is an input of the query.
    ``annotation``: ``batchable``: the elements of its first list are independent; ``splittable``:
    its output can be used element by element. ``config``: what ``docs/guide/workflows.md`` lists
    for its kind. ``when``: the name of a boolean; the component runs only if it is true.

    ``a >> b`` states that ``a`` comes before ``b``, and returns ``b``.
    """

    def __init__(
        self,
        engine: str | Engine,
        inputs: Mapping[str, str],
        outputs: Mapping[str, str],
        annotation: Annotation | None = None,
        config: Mapping[str, Any] = MappingProxyType({}),
        *,
        name: str,
        when: str | None = None,
    ) -> None:
        self.name = name
        self.engine = engine.name if isinstance(engine, Engine) else engine
        self.annotation = annotation
        self.config: Mapping[str, Any] = MappingProxyType(dict(config))
        self.when = when
        self.inputs = _typed(f"{name}.inputs", inputs)
        self.outputs = _typed(f"{name}.outputs", outputs)
        self.before: list[Node] = []
        """The components that it comes before."""
        if annotation not in ANNOTATIONS:
            raise InvalidArgument(
                f"{name}: annotation {annotation!r}: use 'batchable', 'splittable' or none",
                param=f"{name}.annotation",
            )
        if not name.isidentifier() or len(name) > MAX_NAME_CHARS:
            raise InvalidArgument(
                f"a component is named {name!r:.80}: use letters, digits and '_', at most "
                f"{MAX_NAME_CHARS} of them",
                param="name",
            )

    def __rshift__(self, other: Node) -> Node:
        if not isinstance(other, Node):
            raise InvalidArgument(
                f"{self.name} >> {other!r}: the right side must be a Node", param=self.name
            )
        self.before.append(other)
        return other

    def __repr__(self) -> str:
        return f"<Node {self.name}>"


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
        self.passes = passes or OptPass()
        self.engines: dict[str, Engine] = {}
        for engine in engines:
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
                a schema, an order that closes a cycle.
        """
        if not 1 <= len(nodes) <= MAX_NODES:
            raise InvalidArgument(
                f"{self.name}: {len(nodes)} components: give 1 to {MAX_NODES}", param="nodes"
            )
        _check_names(nodes)
        for node in nodes:
            self.component(node).check(node, self.engines.get(node.engine))
            for later in node.before:
                if later not in nodes:
                    raise InvalidArgument(
                        f"{node.name} >> {later.name}: {later.name} is not in the template: add it",
                        param=later.name,
                    )
        _check_types(nodes)
        self.nodes = _ordered(nodes)
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
        made = {name for node in self.nodes for name in node.outputs}
        return {
            name: kind
            for node in self.nodes
            for name, kind in node.inputs.items()
            if name not in made
        }

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


def _typed(where: str, given: Mapping[str, str]) -> Mapping[str, ValueType]:
    if not isinstance(given, Mapping):  # names alone, as in the paper's listing
        raise InvalidArgument(
            f"{where} is a {type(given).__name__}: write types by name, as in "
            '{"question": "text"}',
            param=where,
        )
    for name in given:
        if not name.isidentifier() or len(name) > MAX_NAME_CHARS:
            raise InvalidArgument(
                f"{where}: {name!r:.80} is no name: use letters, digits and '_', at most "
                f"{MAX_NAME_CHARS} of them",
                param=where,
            )
    return MappingProxyType(
        {name: value_type(written, f"{where}.{name}") for name, written in given.items()}
    )


def _check_names(nodes: Sequence[Node]) -> None:
    named: dict[str, Node] = {}
    made: dict[str, Node] = {}
    for node in nodes:
        if named.setdefault(node.name, node) is not node:
            raise InvalidArgument(
                f"two components are named {node.name!r}: rename one", param=node.name
            )
        for name in node.outputs:
            if made.setdefault(name, node) is not node:
                raise InvalidArgument(
                    f"{made[name].name} and {node.name} both produce {name!r}: rename one output",
                    param=f"{node.name}.outputs",
                )


def _check_types(nodes: Sequence[Node]) -> None:
    """Refuse a name with two types, and a batchable component without a list to split."""
    types: dict[str, tuple[str, ValueType]] = {
        name: (node.name, kind) for node in nodes for name, kind in node.outputs.items()
    }
    for node in nodes:
        used = dict(node.inputs)
        if node.when is not None:
            used[node.when] = ValueType.BOOLEAN
            if node.when not in types:
                raise InvalidArgument(
                    f"{node.name}: 'when' names {node.when!r}, which no component produces: name "
                    "the output of a condition",
                    param=f"{node.name}.when",
                )
        for name, kind in used.items():
            where, known = types.setdefault(name, (node.name, kind))
            if known is not kind:
                raise InvalidArgument(
                    f"{node.name} takes {name!r} as {kind}, but {where} has it as {known}: make "
                    "the types equal, or rename one",
                    param=f"{node.name}.inputs.{name}",
                )
        if node.annotation == "batchable" and not LISTS & set(node.inputs.values()):
            raise InvalidArgument(
                f"{node.name} is batchable but takes no list: give it an input of type texts, "
                "documents or vectors, or drop the annotation",
                param=f"{node.name}.annotation",
            )


def _ordered(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Sort the components, each after those whose outputs it takes and those that precede it.

    Raises:
        InvalidArgument: some of them wait for one another.
    """
    makers = {name: node.name for node in nodes for name in node.outputs}
    after = {
        node.name: {makers[name] for name in [*node.inputs, node.when] if name in makers}
        for node in nodes
    }
    for node in nodes:
        for later in node.before:
            after[later.name].add(node.name)
    order: dict[str, Node] = {}
    while len(order) < len(nodes):
        ready = [n for n in nodes if n.name not in order and after[n.name] <= order.keys()]
        if not ready:
            left = after.keys() - order.keys()
            circle = _circle({name: after[name] & left for name in left})
            raise InvalidArgument(
                f"the components {' -> '.join(circle)} wait for one another: remove an input or a "
                "'>>' that closes the cycle",
                param=circle[0],
            )
        order.update((node.name, node) for node in ready)
    return tuple(order.values())


def _circle(waiting: Mapping[str, set[str]]) -> list[str]:
    """Return a cycle, from one component to the same. Each of ``waiting`` waits for another one."""
    way = [min(waiting)]
    while way[-1] not in way[:-1]:
        way.append(min(waiting[way[-1]]))
    circle = way[way.index(way[-1]) :]
    return circle[::-1]
