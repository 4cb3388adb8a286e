"""LangGraph's ``StateGraph`` as an application.

Owns the way from nodes and edges to tools that wait for each other. LangGraph runs in supersteps:
all nodes of a step end before one of the next begins. Here a node begins when those before it have
ended. A graph with a loop, or with a node that can run in several steps, runs in supersteps here,
too. LangGraph is not imported; the attributes of its graph object are read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.imports.graph_shape import END, START, Branch, GraphShape
from quire.programs.workflow.imports.node_functions import interrupting
from quire.programs.workflow.imports.shared_state import MISSING, Key
from quire.programs.workflow.imports.state_graph_nodes import StateGraphNode, finishing
from quire.programs.workflow.imports.supersteps import Supersteps
from quire.programs.workflow.template.app import App
from quire.programs.workflow.template.node import Node

_DESCRIPTION = "A graph of LangGraph."
_PARTS = ("nodes", "edges", "branches", "waiting_edges", "channels", "schemas")
_UNUSED: Mapping[str, tuple[Any, str]] = {
    "retry_policy": (None, "leave it out, and repeat what may fail inside the node"),
    "cache_policy": (None, "leave it out"),
    "timeout": (None, "leave it out; --deadline-s limits the query"),
    "is_error_handler": (False, "catch the error inside the node that raises it"),
    "error_handler_node": (None, "leave it out, and catch the error inside the node"),
}
"""The fields of a node that nothing here acts on: the only value of each, and the remedy."""
_MANAGED = ("IsLastStepManager", "RemainingStepsManager")
_COMPILED: Mapping[str, str] = {
    "interrupt_before_nodes": "a query runs to its end: ask before it, and give the answer in "
    "its state",
    "interrupt_after_nodes": "a query runs to its end: ask before it, and give the answer in its "
    "state",
    "checkpointer": "compile the graph without it",
    "store": "compile the graph without it",
    "cache": "compile the graph without it",
    "step_timeout": "leave it out; --deadline-s limits the query",
}


def is_state_graph(found: object) -> bool:
    """Whether it is a ``StateGraph``, compiled or not."""
    built = getattr(found, "builder", found)
    return all(hasattr(built, part) for part in _PARTS)


def import_state_graph(found: Any, name: str, *, supersteps: bool = False) -> App:
    """Make the application of a ``StateGraph``, compiled or not.

    Its one input ``state`` is the graph's input, its result ``result`` the graph's output. If each
    node can run in one step alone, a node waits for the nodes before it and for no other.
    ``supersteps``: it waits for all nodes of the step before, as in LangGraph.

    Raises:
        InvalidArgument: something that nothing here acts on; the error names the remedy.
    """
    if not is_state_graph(found):
        raise InvalidArgument(
            f"a {type(found).__name__} is not imported: give a StateGraph, compiled or not, in "
            "place of functions with @entrypoint and @task"
        )
    if hasattr(found, "builder"):
        _check_compiled(found)
    built = getattr(found, "builder", found)
    shape = _shape(built, _config(getattr(found, "config", None)))
    order = None if supersteps else _order(shape)
    return _in_supersteps(shape, name) if order is None else _in_order(shape, name, order)


def _in_supersteps(shape: GraphShape, name: str) -> App:
    runs = Supersteps(shape, _called)
    functions = {_called(one): runs.run for one in shape.specs}
    tool = Engine("tool", config={"functions": functions})
    growth = Engine("growth", config={"functions": runs.functions()})
    app = App(name, [tool, growth], _DESCRIPTION)
    app.update_template([runs.growth(("state",))])
    return app


def _in_order(shape: GraphShape, name: str, order: Mapping[str, list[str]]) -> App:
    """``order``: the nodes before each node, which come first."""
    functions: dict[str, Callable[..., Awaitable[Any]]] = {}
    for one, before in order.items():
        node = StateGraphNode(shape, one, {_ended(name): name for name in before})
        functions[_called(one)] = node.run
    functions["finish"] = finishing(shape)
    tool = Engine("tool", config={"functions": functions})
    nodes = [
        Node(
            tool,
            {"state": "object", **{_ended(parent): "object" for parent in before}},
            {_ended(one): "object"},
            config={"function": _called(one)},
            name=_called(one),
        )
        for one, before in order.items()
    ]
    inputs = {"state": "object", **{_ended(one): "object" for one in order}}
    config = {"function": "finish", "pure": True}
    nodes.append(Node(tool, inputs, {"result": "object"}, config=config, name="finish"))
    app = App(name, [tool], _DESCRIPTION)
    app.update_template(nodes)
    return app


def _called(node: str) -> str:
    return "start" if node == START else "node_" + re.sub(r"\W", "_", node)


def _ended(node: str) -> str:
    return f"{_called(node)}_ended"


# -- reading -----------------------------------------------------------------------------------


def _shape(built: Any, config: Any) -> GraphShape:
    keys = {name: _key(name, one) for name, one in built.channels.items()}
    managed = {name: one.__name__ for name, one in getattr(built, "managed", {}).items()}
    unknown = [name for name, kind in managed.items() if kind not in _MANAGED]
    if unknown:
        raise InvalidArgument(
            f"the state has the managed values {', '.join(unknown)}, which nothing here manages: "
            "take them out of the state (IsLastStep and RemainingSteps are there)"
        )
    for name, node in built.nodes.items():
        _check_node(name, node)
    if (asking := interrupting(built.nodes)) is not None:
        raise InvalidArgument(
            f"the node {asking!r} calls interrupt: a query runs to its end; ask before it, and "
            "give the answer in its state",
            param=asking,
        )
    names = [START, *built.nodes]
    called = {_called(one): one for one in names}
    for one in names:
        if called[_called(one)] != one:
            raise InvalidArgument(f"the nodes {called[_called(one)]!r} and {one!r} look alike "
                                  "as names of components: rename one")  # fmt: skip
    schemas = {schema: frozenset(found) for schema, found in built.schemas.items()}
    whole = getattr(built, "state_schema", None)
    edges: dict[str, set[str]] = {one: set() for one in names}
    for start, end in built.edges:
        _check_edge([start], end, names)
        edges[start].add(end)
    for starts, end in built.waiting_edges:
        _check_edge(starts, end, names)
    joins = frozenset((frozenset(starts), end) for starts, end in built.waiting_edges)
    branches = {one: _branches(built, one, whole) for one in names}
    if not edges[START] and not branches[START]:
        raise InvalidArgument("no edge leads from START: add_edge(START, ...) says what runs first")
    return GraphShape(
        specs=built.nodes,
        keys=keys,
        managed=managed,
        schemas=schemas,
        input_schema=built.input_schema,
        output_schema=built.output_schema,
        edges={one: frozenset(ends) for one, ends in edges.items()},
        joins=joins,
        branches=branches,
        commands={name: frozenset(getattr(one, "ends", ())) for name, one in built.nodes.items()},
        config=config,
    )


def _check_edge(starts: Any, end: str, names: list[str]) -> None:
    for one in (*starts, end):
        if one not in names and one != END:
            raise InvalidArgument(
                f"an edge leads from {', '.join(starts)} to {end}, and no node is called {one!r}: "
                f"the nodes are {', '.join(names[1:]) or 'none'}",
                param=one,
            )


def _branches(built: Any, one: str, whole: Any) -> list[Branch]:
    found = []
    for name, branch in built.branches.get(one, {}).items():
        for end in (branch.ends or {}).values():
            _check_edge([one], end, [START, *built.nodes])
        found.append(Branch(name, branch.path, branch.ends, branch.input_schema or whole))
    return found


def _key(name: str, channel: Any) -> Key:
    kind = type(channel).__name__
    if name == "__root__":
        raise InvalidArgument(
            "the state is one value: here it is an object with keys (a TypedDict, a dataclass or "
            "a model of pydantic)"
        )
    if kind == "LastValue" or (kind == "UntrackedValue" and channel.guard):
        return Key()
    if kind == "BinaryOperatorAggregate":
        return Key(channel.operator, channel.value if channel.is_available() else MISSING)
    raise InvalidArgument(
        f"the state's key {name!r} is of the kind {kind}: here a key is overwritten or has a "
        "reducer (Annotated[..., function])",
        param=name,
    )


def _check_node(name: str, node: Any) -> None:
    for field, (wanted, remedy) in _UNUSED.items():
        if getattr(node, field, wanted) != wanted:
            raise InvalidArgument(
                f"the node {name!r} sets {field}, which nothing here acts on: {remedy}", param=name
            )
    takes = set(getattr(node.runnable, "func_accepts", ())) - {"config"}
    if takes and _default_runtime() is None:
        raise InvalidArgument(
            f"the node {name!r} takes {', '.join(sorted(takes))} beside the state, which is not "
            "there here: take it from the state",
            param=name,
        )


def _config(config: Any) -> Any:
    """Return the configuration that nodes get: with LangGraph's runtime of a graph that has no
    context and no store, where a node's function may ask for one."""
    runtime = _default_runtime()
    if runtime is None:
        return config
    config = dict(config or {})
    config["configurable"] = {**config.get("configurable", {}), "__pregel_runtime": runtime}
    return config


def _default_runtime() -> Any:
    return getattr(sys.modules.get("langgraph.runtime"), "DEFAULT_RUNTIME", None)


def _check_compiled(found: Any) -> None:
    for field, remedy in _COMPILED.items():
        if getattr(found, field, None) not in (None, [], ()):
            raise InvalidArgument(
                f"the graph was compiled with {field}, which nothing here acts on: {remedy}"
            )


# -- order -------------------------------------------------------------------------------------


def _order(shape: GraphShape) -> dict[str, list[str]] | None:
    """Return the nodes before each node, in an order in which they come first; None if a node may
    run in several steps, or if its step is asked for."""
    if shape.managed or any(getattr(one, "defer", False) for one in shape.specs.values()):
        return None
    before = _parents(shape)
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError:
        return None
    steps: dict[str, set[int]] = {START: {0}}
    for one in order:
        found = steps.setdefault(one, set())
        for parent in before[one]:
            if one in shape.targets(parent):
                found |= {step + 1 for step in steps[parent]}
        for starts, end in shape.joins:
            if end == one and all(steps[name] for name in starts):
                found.add(max(step for name in starts for step in steps[name]) + 1)
        if len(found) > 1:
            return None
    return {one: before[one] for one in order}


def _parents(shape: GraphShape) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {one: set() for one in shape.edges}
    for start in shape.edges:
        for end in shape.targets(start) - {END}:
            found[end].add(start)
    for starts, end in shape.joins:
        if end != END:
            found[end] |= starts
    return {one: sorted(parents) for one, parents in found.items()}
