"""What the functions of a graph's nodes ask of LangGraph: answered, or refused by name."""

from __future__ import annotations

import contextvars
import functools
import operator
import sys
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any, TypedDict

import pytest
from state_graphs import ITS_OWN, PretendedGraph, Runnable
from test_workflow_langgraph_answers import graph_of, ran

from quire.core.errors import InvalidArgument, ProgramFailed
from quire.programs.workflow.imports import import_state_graph
from quire.programs.workflow.imports.node_functions import interrupting, running_with


def interrupt(value: Any) -> Any:
    return value


interrupt.__module__ = "langgraph.types"
its_types = ModuleType("langgraph.types")
its_types.interrupt = interrupt  # type: ignore[attr-defined]


def asks(state: Any) -> Any:
    return {"answer": interrupt("who?")}


def asks_by_its_module(state: Any) -> Any:
    return {"answer": its_types.interrupt("who?")}


def asks_inside(state: Any) -> Any:
    def inner() -> Any:
        return interrupt("who?")

    return {"answer": inner()}


def asks_of_a_closure() -> Any:
    held = interrupt
    return lambda state: {"answer": held("who?")}


def of_an_empty_closure() -> Any:
    later: str

    def reads(state: Any) -> Any:
        return {"answer": later}

    if reads is None:
        later = "never"
    return reads


class Asking:
    def asks(self, state: Any) -> Any:
        return {"answer": interrupt("who?")}


async def asks_later(state: Any) -> Any:
    return {"answer": interrupt("who?")}


def asks_nothing(state: Any) -> Any:
    return {"answer": str(state)}


def node(function: Any = None, **fields: Any) -> Any:
    return SimpleNamespace(runnable=SimpleNamespace(func=function, **fields))


@pytest.mark.parametrize(
    "function",
    [
        asks, asks_by_its_module, asks_inside, asks_of_a_closure(), Asking().asks,
        functools.partial(asks, 1), functools.wraps(asks)(lambda state: asks(state)),
    ],
)  # fmt: skip
def test_a_node_that_interrupts_is_found(function: Any) -> None:
    assert interrupting({"a": node(asks_nothing), "b": node(function)}) == "b"


def test_nodes_of_subgraphs_and_coroutines_are_looked_at() -> None:
    assert interrupting({"a": node(None, afunc=asks_later)}) == "a"
    subgraph = node(None, builder=SimpleNamespace(nodes={"inner": node(asks)}))
    assert interrupting({"a": subgraph}) == "a: inner"


@pytest.mark.parametrize(
    "function", [asks_nothing, None, len, operator.itemgetter("x"), of_an_empty_closure()]
)
def test_others_are_not(function: Any) -> None:
    assert interrupting({"a": node(function)}) is None


def test_it_is_refused_before_any_node_runs() -> None:
    class Func(Runnable):
        func = staticmethod(asks)

    graph = graph_of(PretendedGraph, ("__start__", "a"), a=asks_nothing)
    graph.nodes["a"].runnable = Func(asks_nothing)
    with pytest.raises(InvalidArgument, match="the node 'a' calls interrupt: a query runs to its"):
        import_state_graph(graph, "imported")


async def test_a_function_finds_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("config", default=None)
    module = SimpleNamespace(var_child_runnable_config=variable)
    monkeypatch.setitem(sys.modules, "langchain_core.runnables.config", module)

    async def told(state: Any) -> Any:
        return {"answer": variable.get()["configurable"]["who"]}

    graph = graph_of(PretendedGraph, ("__start__", "a"), a=told)
    compiled = graph.compile().with_config({"configurable": {"who": "Lin"}})
    assert (await ran(compiled, {}))["answer"] == "Lin"
    with running_with({"tags": []}):
        assert variable.get() == {"tags": []}
    assert variable.get() is None


@pytest.mark.skipif(ITS_OWN.graph is None, reason="LangGraph is not installed")
class TestWithLangGraph:
    def test_its_interrupt_is_refused(self) -> None:
        types = pytest.importorskip("langgraph.types")
        graph = graph_of(
            ITS_OWN.graph, ("__start__", "a"), a=lambda state: {"answer": types.interrupt("who?")}
        )
        with pytest.raises(InvalidArgument, match="the node 'a' calls interrupt"):
            import_state_graph(graph, "imported")

    async def test_an_interrupt_that_was_not_seen_is_refused_when_it_is_called(self) -> None:
        types = pytest.importorskip("langgraph.types")
        hidden = vars(types)["interrupt"]
        graph = graph_of(
            ITS_OWN.graph, ("__start__", "a"),
            a=lambda state, ask=[hidden]: {"answer": ask[0]("who?")},
        )  # fmt: skip
        with pytest.raises(ProgramFailed, match="a calls interrupt of LangGraph, which asks a run"):
            await ran(graph, {})

    async def test_its_writer_runtime_and_configuration_are_there(self) -> None:
        config = pytest.importorskip("langgraph.config")
        runtime = pytest.importorskip("langgraph.runtime")

        def told(state: Any) -> Any:
            config.get_stream_writer()({"done": 1})
            who = config.get_config()["configurable"]["who"]
            return {"answer": f"{who} {runtime.get_runtime().context}"}

        graph = graph_of(ITS_OWN.graph, ("__start__", "a"), a=told)
        compiled = graph.compile().with_config({"configurable": {"who": "Lin"}})
        found = await ran(compiled, {})
        assert found == await compiled.ainvoke({}) == {"found": [], "answer": "Lin None"}

    async def test_a_key_that_is_not_kept_is_a_key(self) -> None:
        channels = pytest.importorskip("langgraph.channels")

        def made(kind: Any) -> Any:
            schema = TypedDict("Passing", {"now": Annotated[str, kind]})  # noqa: UP013
            return graph_of(
                ITS_OWN.graph, ("__start__", "a"), schema=schema, a=lambda state: {"now": "x"}
            )

        assert await ran(made(channels.UntrackedValue), {}) == {"now": "x"}
        for kind in (channels.EphemeralValue, channels.UntrackedValue(str, guard=False)):
            with pytest.raises(InvalidArgument, match=r"'now' is of the kind .*: here a key is"):
                import_state_graph(made(kind), "imported")

    def test_the_functional_api_is_refused(self) -> None:
        func = pytest.importorskip("langgraph.func")
        with pytest.raises(InvalidArgument, match="a Pregel is not imported: give a StateGraph"):
            import_state_graph(func.entrypoint()(asks_nothing), "imported")
