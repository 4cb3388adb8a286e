"""What LangGraph 1.2's ``StateGraph`` shows of itself, for tests without it.

``graph_classes`` are both, so that a test that passes with the stand-in passes with LangGraph where
it is installed.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

try:
    from langgraph.graph import StateGraph
except ImportError:
    StateGraph = None


class Runnable:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self.func_accepts = {
            name: None for name in inspect.signature(function).parameters if name in ("runtime",)
        }

    async def ainvoke(self, state: Any) -> Any:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(state)
        return await asyncio.to_thread(self._function, state)


class LastValue:
    pass


class BinaryOperatorAggregate:
    def __init__(self, operator: Callable[[Any, Any], Any], kind: type) -> None:
        self.operator, self.value = operator, kind()


class Spec:
    def __init__(self, runnable: Runnable, schema: type, **fields: Any) -> None:
        self.runnable, self.input_schema = runnable, schema
        self.retry_policy, self.defer, self.ends = None, False, ()
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

    def add_node(self, name: str, function: Callable[[Any], Any], **fields: Any) -> None:
        self.nodes[name] = Spec(Runnable(function), self.input_schema, **fields)

    def add_edge(self, start: str | list[str], end: str) -> None:
        if isinstance(start, str):
            self.edges.add((start, end))
        else:
            self.waiting_edges.add((tuple(start), end))

    def add_conditional_edges(
        self, start: str, path: Callable[[Any], Any], path_map: dict[Any, str] | None = None
    ) -> None:
        self.branches[start][path.__name__] = Branch(Runnable(path), path_map, self.input_schema)


def _channel(hint: Any) -> Any:
    if typing.get_origin(hint) is typing.Annotated:
        kind, operator = typing.get_args(hint)
        return BinaryOperatorAggregate(operator, typing.get_origin(kind) or kind)
    return LastValue()


graph_classes: list[Any] = [PretendedGraph, *([] if StateGraph is None else [StateGraph])]
