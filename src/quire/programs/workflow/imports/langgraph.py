"""LangGraph's ``StateGraph`` as an application.

Owns the way from nodes and edges to tools that wait for each other. LangGraph runs in supersteps:
all nodes of a step end before one of the next begins. Here a node begins when those before it have
ended. LangGraph is not imported; the attributes of its graph object are read.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.imports.shared_state import (
    MISSING,
    EndedNode,
    Key,
    Update,
    joined,
    state_of,
)
from quire.programs.workflow.template.app import App, Node

START, END = "__start__", "__end__"
_PARTS = ("nodes", "edges", "branches", "waiting_edges", "channels", "schemas")
_UNUSED: Mapping[str, Any] = {
    "retry_policy": None, "cache_policy": None, "defer": False, "timeout": None,
    "is_error_handler": False, "error_handler_node": None, "ends": (),
}  # fmt: skip
"""The fields of a node that nothing here acts on, with the only value that each may have."""
_COMPILED: Mapping[str, Any] = {
    "interrupt_before_nodes": [], "interrupt_after_nodes": [], "checkpointer": None, "store": None,
    "cache": None, "step_timeout": None,
}  # fmt: skip


def is_state_graph(found: object) -> bool:
    """Whether it is a ``StateGraph``, compiled or not."""
    built = getattr(found, "builder", found)
    return all(hasattr(built, part) for part in _PARTS)


def import_state_graph(found: Any, name: str) -> App:
    """Make the application of a ``StateGraph``, compiled or not.

    Its one input ``state`` is the graph's input, its result ``result`` the graph's output. Each
    node runs at most once.


    Raises:
        InvalidArgument: a loop, or something that nothing here acts on; the error names the remedy.
    """
    if hasattr(found, "builder"):
        _check_compiled(found)
    graph = _Graph(getattr(found, "builder", found))
    functions: dict[str, Callable[..., Awaitable[Any]]] = {
        _called(one): graph.runner(one) for one in graph.order
    }
    functions["finish"] = graph.finish
    tool = Engine("tool", config={"functions": functions})
    nodes = [
        Node(
            tool,
            {"state": "object", **{_ended(before): "object" for before in graph.before[one]}},
            {_ended(one): "object"},
            config={"function": _called(one)},
            name=_called(one),
        )
        for one in graph.order
    ]
    inputs = {"state": "object", **{_ended(one): "object" for one in graph.order}}
    config = {"function": "finish", "pure": True}
    nodes.append(Node(tool, inputs, {"result": "object"}, config=config, name="finish"))
    app = App(name, [tool], "A graph of LangGraph.")
    app.update_template(nodes)
    return app


def _called(node: str) -> str:
    return "start" if node == START else "node_" + re.sub(r"\W", "_", node)


def _ended(node: str) -> str:
    return f"{_called(node)}_ended"


@dataclass(frozen=True, slots=True)
class _Branch:
    path: Any
    ends: Mapping[Any, str]
    keys: frozenset[str]
    """The keys of the state that its path function sees."""


class _Graph:
    """The nodes, edges and branches of a graph, and the functions that run its nodes."""

    def __init__(self, built: Any) -> None:
        self._built = built
        self._keys = {name: _key(name, one) for name, one in built.channels.items()}
        if getattr(built, "managed", None):
            raise InvalidArgument(
                f"the state has the managed values {', '.join(built.managed)}, which nothing here "
                "manages: take them out of the state"
            )
        for name, node in built.nodes.items():
            _check_node(name, node)
        names = [START, *built.nodes]
        called = {_called(one): one for one in names}
        for one in names:
            if called[_called(one)] != one:
                raise InvalidArgument(f"the nodes {called[_called(one)]!r} and {one!r} look alike "
                                      "as names of components: rename one")  # fmt: skip
        self._edges: dict[str, set[str]] = {one: set() for one in names}
        for start, end in built.edges:
            self._edges[start].add(end)
        self._joins = {(frozenset(starts), end) for starts, end in built.waiting_edges}
        self._branches = {one: self._branches_of(one) for one in names}
        self.before = self._parents()
        self.order = self._ordered()
        self._places = {one: place for place, one in enumerate(self.order)}

    def _branches_of(self, one: str) -> list[_Branch]:
        found = []
        for name, branch in self._built.branches.get(one, {}).items():
            if branch.ends is None:
                raise InvalidArgument(
                    f"the branch {name!r} of {one} does not say where it may lead: annotate what "
                    "it returns with Literal[...], or give add_conditional_edges a path_map",
                    param=one,
                )
            found.append(_Branch(branch.path, branch.ends, self._schema(branch.input_schema)))
        return found

    def _schema(self, schema: Any) -> frozenset[str]:
        return frozenset(self._built.schemas.get(schema, self._keys))

    def _parents(self) -> dict[str, list[str]]:
        found: dict[str, set[str]] = {one: set() for one in self._edges}
        for start, ends in self._edges.items():
            for end in ends | {end for one in self._branches[start] for end in one.ends.values()}:
                if end != END:
                    found[end].add(start)
        for starts, end in self._joins:
            if end != END:
                found[end] |= starts
        return {one: sorted(parents) for one, parents in found.items()}

    def _ordered(self) -> list[str]:
        try:
            return list(TopologicalSorter(self.before).static_order())
        except CycleError as exc:
            raise InvalidArgument(
                f"the nodes {' -> '.join(exc.args[1])} form a loop: a graph here has none: import "
                "what is inside it, and write the loop as a program",
                param=exc.args[1][0],
            ) from exc

    # -- running -------------------------------------------------------------------------------

    def runner(self, one: str) -> Callable[..., Awaitable[EndedNode]]:
        """Return the function of the tool that runs the node ``one``."""

        async def run(state: Any, **ended: EndedNode) -> EndedNode:
            before = {name: ended[_ended(name)] for name in self.before[one]}
            updates = joined(before.values())
            if one == START:
                self._check_input(state)
            elif not self._is_reached(one, before):
                return EndedNode(False, frozenset(), updates)
            else:
                values = await self._updated(one, state, updates)
                place = self._places[one]
                updates = {**updates, place: Update(place, one, frozenset(updates), values)}
            goes_to = set(self._edges[one])
            for branch in self._branches[one]:
                goes_to |= await self._chosen(one, branch, state_of(self._keys, state, updates))
            return EndedNode(True, frozenset(goes_to), updates)

        return run

    def _check_input(self, state: Any) -> None:
        known = self._schema(self._built.input_schema)
        if not isinstance(state, Mapping) or not state.keys() <= known:
            raise InvalidArgument(
                f"the state is {state!r:.80}: give an object with some of the keys "
                f"{', '.join(sorted(known))}",
                param="state",
            )

    def _is_reached(self, one: str, before: Mapping[str, EndedNode]) -> bool:
        """Whether an edge or branch of a node that ran, or a joint edge of several, leads to
        ``one``."""
        ran = {name for name, ended in before.items() if ended.ran}
        return any(one in before[name].goes_to for name in ran) or any(
            end == one and starts <= ran for starts, end in self._joins
        )

    async def _updated(self, one: str, state: Any, updates: Mapping[int, Update]) -> dict[str, Any]:
        spec = self._built.nodes[one]
        seen = self._schema(spec.input_schema)
        whole = state_of(self._keys, state, updates)
        shown = {name: value for name, value in whole.items() if name in seen}
        is_mapping = inspect.isclass(spec.input_schema) and issubclass(spec.input_schema, dict)
        given = shown if is_mapping else spec.input_schema(**shown)
        found = await spec.runnable.ainvoke(given)
        if found is None:
            return {}
        if not isinstance(found, Mapping):
            raise InvalidArgument(
                f"the node {one!r} returned {type(found).__name__}: return an object with the keys "
                "that it sets; commands and sends are not imported",
                param=one,
            )
        return dict(found)

    async def _chosen(self, one: str, branch: _Branch, state: Mapping[str, Any]) -> set[str]:
        shown = {name: value for name, value in state.items() if name in branch.keys}
        found = await branch.path.ainvoke(shown)
        picked = found if isinstance(found, list | tuple) else [found]
        for choice in picked:
            if not isinstance(choice, str | bool | int) or choice not in branch.ends:
                raise InvalidArgument(
                    f"a branch of {one} returned {choice!r:.80}; it may lead to "
                    f"{', '.join(map(str, branch.ends))}",
                    param=one,
                )
        return {branch.ends[choice] for choice in picked}

    async def finish(self, state: Any, **ended: EndedNode) -> dict[str, Any]:
        """Return the graph's output as JSON values."""
        whole = state_of(self._keys, state, joined(ended.values()))
        shown = self._schema(self._built.output_schema)
        return {name: _plain(name, one) for name, one in whole.items() if name in shown}


def _key(name: str, channel: Any) -> Key:
    kind = type(channel).__name__
    if kind == "LastValue":
        return Key()
    if kind == "BinaryOperatorAggregate":
        first = getattr(channel, "value", MISSING)
        return Key(channel.operator, MISSING if type(first).__name__ == "MISSING" else first)
    raise InvalidArgument(
        f"the state's key {name!r} is a {kind}: here a key is overwritten or has a reducer "
        "(Annotated[..., function])",
        param=name,
    )


def _check_node(name: str, node: Any) -> None:
    for field, wanted in _UNUSED.items():
        given = getattr(node, field, wanted)
        if given != wanted:
            raise InvalidArgument(
                f"the node {name!r} has {field} {given!r:.60}, which nothing here acts on: leave "
                "it out",
                param=name,
            )
    takes = set(getattr(node.runnable, "func_accepts", ())) - {"config"}
    if takes:
        raise InvalidArgument(
            f"the node {name!r} takes {', '.join(sorted(takes))} beside the state, which is not "
            "there here: take it from the state",
            param=name,
        )


def _check_compiled(found: Any) -> None:
    for field, wanted in _COMPILED.items():
        given = getattr(found, field, wanted)
        if given not in (wanted, None):
            raise InvalidArgument(
                f"the graph was compiled with {field} {given!r:.60}, which nothing here acts on: "
                "leave it out"
            )


def _plain(name: str, value: Any) -> Any:
    """Convert ``value`` to JSON values; messages and models of pydantic become objects."""
    if isinstance(value, Mapping):
        return {str(key): _plain(name, one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(name, one) for one in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise InvalidArgument(
            f"the state's {name!r} holds a {type(value).__name__}, which a result cannot hold: "
            "leave it out of the graph's output schema",
            param=name,
        )
    return _plain(name, dump(mode="json"))
