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
from dataclasses import dataclass
from typing import Any, NamedTuple

try:
    from langgraph.graph import StateGraph
    from langgraph.managed import IsLastStep, RemainingSteps
    from langgraph.types import Command as ItsCommand
    from langgraph.types import Send as ItsSend
except ImportError:
    StateGraph = ItsCommand = ItsSend = IsLastStep = RemainingSteps = None


class Runnable:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        parameters = inspect.signature(function).parameters
        self.func_accepts = {name: None for name in parameters if name in ("runtime", "config")}

    async def ainvoke(self, state: Any, config: Any = None) -> Any:
        known = {"config": config}
        if "runtime" in self.func_accepts:
            known["runtime"] = config["configurable"]["__pregel_runtime"]
        given = {name: known[name] for name in self.func_accepts}
        if inspect.iscoroutinefunction(self._function):
            return await self._function(state, **given)
        return await asyncio.to_thread(self._function, state, **given)


class Send:
    def __init__(self, node: str, arg: Any) -> None:
        self.node, self.arg = node, arg


@dataclass
class Command:
    update: Any = None
    goto: Any = ()
    graph: str | None = None
    resume: Any = None


class ParentCommand(Exception):
    pass


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
        hints = typing.get_type_hints(schema, include_extras=True)
        self.managed = {name: one for name, hint in hints.items() if (one := _managed(hint))}
        self.channels = {
            name: _channel(hint) for name, hint in hints.items() if name not in self.managed
        }
        self.schemas = {schema: {**self.channels, **self.managed}}
        self.nodes: dict[str, Spec] = {}
        self.edges: set[tuple[str, str]] = set()
        self.waiting_edges: set[tuple[tuple[str, ...], str]] = set()
        self.branches: dict[str, dict[str, Branch]] = defaultdict(dict)

    def add_node(
        self, name: str, function: Callable[..., Any], *, destinations: Any = (), **fields: Any
    ) -> None:
        self.nodes[name] = Spec(Runnable(function), self.input_schema, ends=destinations, **fields)

    def add_edge(self, start: str | list[str], end: str) -> None:
        if isinstance(start, str):
            self.edges.add((start, end))
        else:
            self.waiting_edges.add((tuple(start), end))

    def compile(self) -> PretendedCompiled:
        return PretendedCompiled(self)

    def add_conditional_edges(
        self,
        start: str,
        path: Callable[[Any], Any],
        path_map: dict[Any, str] | list[str] | None = None,
    ) -> None:
        if isinstance(path_map, list):
            path_map = {one: one for one in path_map}
        self.branches[start][path.__name__] = Branch(Runnable(path), path_map, self.input_schema)


class PretendedCompiled(NamedTuple):
    builder: PretendedGraph
    config: Any = None

    def with_config(self, config: Any) -> PretendedCompiled:
        return PretendedCompiled(self.builder, config)


class IsLastStepManager:
    pass


class RemainingStepsManager:
    pass


def _managed(hint: Any) -> type | None:
    """What gives the key its value in each step, or None."""
    made = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
    return next((one for one in made if getattr(one, "__name__", "").endswith("Manager")), None)


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
    last: Any
    remaining: Any


PRETENDED = Parts(
    PretendedGraph,
    Send,
    Command,
    typing.Annotated[bool, IsLastStepManager],
    typing.Annotated[int, RemainingStepsManager],
)
ITS_OWN = Parts(StateGraph, ItsSend, ItsCommand, IsLastStep, RemainingSteps)
PARTS = [PRETENDED, *([] if StateGraph is None else [ITS_OWN])]
graph_classes: list[Any] = [PretendedGraph, *([] if StateGraph is None else [StateGraph])]
