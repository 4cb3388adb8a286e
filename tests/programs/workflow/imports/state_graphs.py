"""What LangGraph 1.2's ``StateGraph`` shows of itself, for tests without it.

``graph_classes`` are both, so that a test that passes with the stand-in passes with LangGraph where
it is installed.
"""

from __future__ import annotations

import asyncio
import inspect
import types
import typing
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

try:
    from langgraph.graph import StateGraph
    from langgraph.types import Command as ItsCommand
    from langgraph.types import Send as ItsSend
except ImportError:
    StateGraph = ItsCommand = ItsSend = None


class Runnable:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        parameters = inspect.signature(function).parameters
        self.func_accepts = {name: None for name in parameters if name in ("runtime", "config")}

    async def ainvoke(self, state: Any, config: Any = None) -> Any:
        given = {"config": config} if "config" in self.func_accepts else {}
        if inspect.iscoroutinefunction(self._function):
            return await self._function(state, **given)
        return await asyncio.to_thread(self._function, state, **given)


class Send:
    def __init__(self, node: str, arg: Any) -> None:
        self.node, self.arg = node, arg


class Command:
    def __init__(self, update: Any = None, goto: Any = (), graph: str | None = None) -> None:
        self.update, self.goto, self.graph, self.resume = update, goto, graph, None


NOTHING: Any = object()


class LastValue:
    pass


class BinaryOperatorAggregate:
    def __init__(self, operator: Callable[[Any, Any], Any], kind: type) -> None:
        self.operator = operator
        self.value = NOTHING if isinstance(kind, types.UnionType) else kind()

    def is_available(self) -> bool:
        return self.value is not NOTHING


class Spec:
    def __init__(self, runnable: Runnable, schema: type, **fields: Any) -> None:
        self.runnable, self.input_schema = runnable, schema
        self.retry_policy, self.defer = None, False
        vars(self).update(fields)


class Branch(NamedTuple):
    path: Runnable
    ends: dict[Any, str] | None
    input_schema: type


class PretendedGraph:
    def __init__(self, schema: type) -> None:
        self.input_schema = self.output_schema = schema
        self.channels = {
            name: _channel(hint)
            for name, hint in typing.get_type_hints(schema, include_extras=True).items()
        }
        self.schemas = {schema: self.channels}
        self.nodes: dict[str, Spec] = {}
        self.edges: set[tuple[str, str]] = set()
        self.waiting_edges: set[tuple[tuple[str, ...], str]] = set()
        self.branches: dict[str, dict[str, Branch]] = defaultdict(dict)
        self.managed: dict[str, Any] = {}

    def add_node(
        self, name: str, function: Callable[..., Any], *, destinations: Any = (), **fields: Any
    ) -> None:
        self.nodes[name] = Spec(Runnable(function), self.input_schema, ends=destinations, **fields)

    def add_edge(self, start: str | list[str], end: str) -> None:
        if isinstance(start, str):
            self.edges.add((start, end))
        else:
            self.waiting_edges.add((tuple(start), end))

    def add_conditional_edges(
        self,
        start: str,
        path: Callable[[Any], Any],
        path_map: dict[Any, str] | list[str] | None = None,
    ) -> None:
        if isinstance(path_map, list):
            path_map = {one: one for one in path_map}
        self.branches[start][path.__name__] = Branch(Runnable(path), path_map, self.input_schema)


def _channel(hint: Any) -> Any:
    if typing.get_origin(hint) is typing.Annotated:
        kind, operator = typing.get_args(hint)
        return BinaryOperatorAggregate(operator, kind)
    return LastValue()


class Parts(NamedTuple):
    """What a graph is written with: LangGraph's own, or the stand-ins."""

    graph: Any
    send: Any
    command: Any


PRETENDED = Parts(PretendedGraph, Send, Command)
PARTS = [PRETENDED, *([] if StateGraph is None else [Parts(StateGraph, ItsSend, ItsCommand)])]
graph_classes: list[Any] = [PretendedGraph, *([] if StateGraph is None else [StateGraph])]
