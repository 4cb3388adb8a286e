"""Graphs of LangGraph with loops, and others whose nodes may run in several steps.

With LangGraph installed each graph is also run by LangGraph itself, on the same input.
"""

from __future__ import annotations

import asyncio
import copy
import json
import operator
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import pytest
from state_graphs import ITS_OWN, PARTS, PRETENDED, Parts, PretendedGraph

from quire.core.errors import ProgramFailed
from quire.programs.workflow import workflow
from quire.programs.workflow.execution import scheduler
from quire.programs.workflow.imports import import_state_graph, supersteps
from quire.testing import LocalNode


class State(TypedDict):
    num: int
    found: Annotated[list[str], operator.add]


def put(text: str) -> Callable[[Any], Any]:
    return lambda state: {"found": [f"{text}{len(state['found'])}"]}


def graph_of(made: Any, *edges: tuple[Any, str], schema: Any = State, **nodes: Any) -> Any:
    graph = made(schema)
    for name, function in nodes.items():
        graph.add_node(name, function)
    for start, end in edges:
        graph.add_edge(start, end)
    return graph


async def ran(graph: Any, state: Mapping[str, Any], **how: Any) -> Any:
    async with LocalNode() as local:
        program = workflow(import_state_graph(graph, "imported", **how))
        return (await local.run(program, json.dumps({"state": state})))["result"]


def counting(parts: Parts) -> Any:
    """A loop of two nodes, that a branch ends."""
    graph = graph_of(
        parts.graph, ("__start__", "a"), ("a", "b"), a=put("a"),
        b=lambda state: {"num": state["num"] + 1, "found": ["b"]},
    )  # fmt: skip
    graph.add_conditional_edges(
        "b",
        lambda state: "again" if state["num"] < 3 else "done",
        {"again": "a", "done": "__end__"},
    )
    return graph


def agent(parts: Parts) -> Any:
    """A branch without a path_map, and a command that does not say where it may lead."""

    def model(state: Any) -> Any:
        return {"found": [f"calls {2 - state['num']}"], "num": state["num"] - 1}

    def tools(state: Any) -> Any:
        return parts.command(update={"found": ["tool"]}, goto="model")

    graph = graph_of(parts.graph, ("__start__", "model"), model=model, tools=tools)
    graph.add_conditional_edges("model", lambda state: "tools" if state["num"] else "__end__")
    return graph


def twice(parts: Parts) -> Any:
    """``last`` is reached in steps 2 and 3, and runs in both."""
    return graph_of(
        parts.graph, ("__start__", "a"), ("a", "b"), ("b", "last"), ("a", "last"),
        a=put("a"), b=put("b"), last=put("last"),
    )  # fmt: skip


def joined_again(parts: Parts) -> Any:
    """Two nodes of different length, and one that waits for both, twice."""
    graph = graph_of(
        parts.graph, ("__start__", "go"), ("go", "short"), ("go", "long"), ("long", "longer"),
        (["short", "longer"], "both"), go=put("go"), short=put("short"), long=put("long"),
        longer=put("longer"), both=lambda state: {"num": state["num"] + 1, "found": ["both"]},
    )  # fmt: skip
    graph.add_conditional_edges("both", lambda state: "go" if state["num"] < 2 else "__end__")
    return graph


def sending(parts: Parts) -> Any:
    """Each round sends as many runs as there have been rounds."""

    def fan(state: Any) -> Any:
        if state["num"] == 3:
            return "__end__"
        return [parts.send("work", {"num": one}) for one in range(state["num"])]

    graph = graph_of(
        parts.graph, ("__start__", "plan"), ("work", "plan"),
        plan=lambda state: {"num": state["num"] + 1, "found": ["plan"]},
        work=lambda state: {"found": [f"w{state['num']}"]},
    )  # fmt: skip
    graph.add_conditional_edges("plan", fan, ["work", "__end__"])
    return graph


def deferring(parts: Parts) -> Any:
    """``last`` waits until nothing else is left to run."""
    graph = graph_of(
        parts.graph, ("__start__", "a"), ("__start__", "short"), ("a", "b"), ("b", "c"),
        a=put("a"), b=put("b"), c=put("c"), short=put("short"),
    )  # fmt: skip
    graph.add_node("last", put("last"), defer=True)
    graph.add_edge("short", "last")
    graph.add_edge("b", "last")
    return graph


def deferred_join(parts: Parts) -> Any:
    graph = graph_of(
        parts.graph, ("__start__", "a"), ("__start__", "b"), ("a", "c"), ("c", "d"),
        a=put("a"), b=put("b"), c=put("c"), d=put("d"),
    )  # fmt: skip
    graph.add_node("last", put("last"), defer=True)
    graph.add_edge(["a", "b"], "last")
    graph.add_conditional_edges(
        "last", lambda state: "a" if len(state["found"]) < 8 else "__end__", ["a", "__end__"]
    )
    return graph


def deferred_beside_sent(parts: Parts) -> Any:
    """What was sent does not hold a deferred node back."""
    graph = graph_of(
        parts.graph, ("__start__", "a"), ("work", "after"), a=put("a"), after=put("after"),
        work=lambda state: {"found": ["work"]},
    )  # fmt: skip
    graph.add_node("last", put("last"), defer=True)
    graph.add_edge("a", "last")
    graph.add_conditional_edges("a", lambda state: [parts.send("work", {})], ["work"])
    return graph


def remaining(parts: Parts) -> Any:
    """A loop that ends in its last step."""
    schema = TypedDict(  # noqa: UP013 - its parts are values
        "schema",
        {"found": Annotated[list[Any], operator.add], "left": parts.remaining, "last": parts.last},
    )  # type: ignore[misc, operator]
    graph = graph_of(
        parts.graph, ("__start__", "a"), schema=schema,
        a=lambda state: {"found": [[state["left"], state["last"]]]},
    )  # fmt: skip
    graph.add_conditional_edges("a", lambda state: "__end__" if state["left"] < 2 else "a")
    return graph.compile().with_config({"recursion_limit": 4})


CASES: list[tuple[Callable[[Parts], Any], dict[str, Any], dict[str, Any]]] = [
    (counting, {"num": 0, "found": []}, {"num": 3, "found": ["a0", "b", "a2", "b", "a4", "b"]}),
    (agent, {"num": 2, "found": []}, {"num": 0, "found": ["calls 0", "tool", "calls 1"]}),
    (twice, {"found": []}, {"found": ["a0", "b1", "last1", "last3"]}),
    (joined_again, {"num": 0}, {"num": 2, "found": [
        "go0", "long1", "short1", "longer3", "both", "go5", "long6", "short6", "longer8", "both"
    ]}),
    (sending, {"num": 0}, {"num": 3, "found": [
        "plan", "w0", "plan", "w0", "w1", "plan"
    ]}),
    (deferring, {}, {"found": ["a0", "short0", "b2", "c3", "last4"]}),
    (deferred_join, {}, {"found": ["a0", "b0", "c2", "d3", "last4", "a5", "c6", "d7"]}),
    (deferred_beside_sent, {}, {"found": ["a0", "last1", "work", "after3"]}),
    (remaining, {}, {"found": [[3, False], [2, False], [1, True]]}),
]  # fmt: skip


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(("make", "state", "wanted"), CASES)
async def test_steps_are_langgraphs(
    parts: Parts,
    make: Callable[[Parts], Any],
    state: dict[str, Any],
    wanted: Mapping[str, Any],
) -> None:
    graph = make(parts)
    if not hasattr(graph, "builder"):
        graph = graph.compile().with_config({"recursion_limit": 20})
    assert await ran(graph, state) == wanted
    if parts is not PRETENDED:
        assert await graph.ainvoke(copy.deepcopy(state)) == wanted


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(("limit", "enough"), [(6, False), (7, True)])
async def test_the_recursion_limit_is_langgraphs(parts: Parts, limit: int, enough: bool) -> None:
    """The loop has six steps, and LangGraph looks for a seventh."""
    graph = counting(parts).compile().with_config({"recursion_limit": limit})
    if enough:
        assert (await ran(graph, {"num": 0}))["num"] == 3
    else:
        with pytest.raises(ProgramFailed, match=r"has done 6 steps, and its recursion limit is 6"):
            await ran(graph, {"num": 0})
        if parts is not PRETENDED:
            with pytest.raises(RecursionError):
                await graph.ainvoke({"num": 0})


async def test_a_loop_that_reaches_no_recursion_limit_ends_with_it_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nine primitives are the first growth, and a run and a growth for each of four steps."""
    for module in (scheduler, supersteps):
        monkeypatch.setattr(module, "MAX_GROWN_PRIMITIVES", 10)
    told = (
        "supersteps: the graph has done 4 steps, in which its nodes ran 4 times, and a query has "
        "at most 10 steps and runs together: let it end earlier; a recursion_limit"
    )
    with pytest.raises(ProgramFailed, match=told):
        await ran(counting(PRETENDED), {"num": 0})


async def test_two_that_overwrite_one_key_in_a_step_of_a_loop_are_refused() -> None:
    graph = counting(PRETENDED)
    graph.add_node("c", lambda state: {"num": 7})
    graph.add_edge("a", "c")
    with pytest.raises(ProgramFailed, match="b and c both set 'num' side by side: give the key"):
        await ran(graph, {"num": 0})


async def test_a_loop_that_leads_nowhere_is_named() -> None:
    graph = counting(PRETENDED)
    graph.add_conditional_edges("a", lambda state: "nobody")
    with pytest.raises(ProgramFailed, match="of a returned 'nobody'; it may lead to a, b, __end__"):
        await ran(graph, {"num": 0})


@pytest.mark.parametrize(
    ("goto", "message"),
    [
        ("nobody", "'a' goes to 'nobody', and no node is called so: the nodes are a"),
        ([PRETENDED.send("nobody", {})], "a sends to 'nobody', which is no node"),
    ],
)
async def test_a_command_of_a_loop_that_leads_nowhere_is_named(goto: Any, message: str) -> None:
    graph = graph_of(
        PretendedGraph, ("__start__", "a"), ("a", "a"), a=lambda _: PRETENDED.command(goto=goto)
    )
    with pytest.raises(ProgramFailed, match=message):
        await ran(graph, {})


async def test_nodes_of_a_step_run_side_by_side() -> None:
    """Each waits for the other: one after the other they would never end."""
    begun = {name: asyncio.Event() for name in "bc"}

    def waiting(own: str, other: str) -> Callable[[Any], Any]:
        async def node(state: Any) -> Any:
            begun[own].set()
            await begun[other].wait()
            return {"found": [own]}

        return node

    graph = graph_of(
        PretendedGraph, ("__start__", "a"), ("a", "b"), ("a", "c"), (["b", "c"], "a"),
        a=lambda state: {"num": state["num"] + 1}, b=waiting("b", "c"), c=waiting("c", "b"),
    )  # fmt: skip
    graph.edges -= {("a", "b"), ("a", "c")}
    graph.add_conditional_edges("a", lambda state: ["b", "c"] if state["num"] < 3 else "__end__")
    found = await asyncio.wait_for(ran(graph, {"num": 0}), 60)
    assert found["found"] == ["b", "c", "b", "c"]


@pytest.mark.parametrize("parts", PARTS)
async def test_a_graph_without_loops_may_ask_for_supersteps(parts: Parts) -> None:
    """Without them ``told`` would not see what ``beside`` sets, and is refused."""
    graph = graph_of(
        parts.graph, ("__start__", "a"), ("__start__", "beside"), ("a", "told"),
        a=put("a"), beside=put("beside"), told=put("told"),
    )  # fmt: skip
    wanted = {"found": ["a0", "beside0", "told2"]}
    with pytest.raises(ProgramFailed, match=r"or import the graph with supersteps=True"):
        await ran(graph, {})
    assert await ran(graph, {}, supersteps=True) == wanted


async def test_a_node_gets_langgraphs_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(context=None, told=[])
    module = SimpleNamespace(DEFAULT_RUNTIME=runtime)
    monkeypatch.setitem(sys.modules, "langgraph.runtime", module)  # type: ignore[arg-type]

    def node(state: Any, runtime: Any) -> Any:
        return {"found": [str(runtime.context)]}

    graph = graph_of(PretendedGraph, ("__start__", "a"), a=node)
    assert (await ran(graph, {}))["found"] == ["None"]


@pytest.mark.skipif(ITS_OWN.graph is None, reason="LangGraph is not installed")
async def test_a_prebuilt_agent_answers_as_in_langgraph() -> None:
    from langchain_core.language_models import FakeMessagesListChatModel
    from langchain_core.messages import AIMessage
    from langgraph.graph import MessagesState
    from langgraph.prebuilt import ToolNode, tools_condition

    def add(a: int, b: int) -> int:
        """The sum."""
        return a + b

    def agent() -> Any:
        call = {"name": "add", "args": {"a": 1, "b": 2}, "id": "1"}
        model = FakeMessagesListChatModel(responses=[
            AIMessage("", tool_calls=[call, call | {"id": "2"}], id="x"), AIMessage("3", id="y")
        ])  # fmt: skip
        graph = ITS_OWN.graph(MessagesState)
        graph.add_node("model", lambda state: {"messages": model.invoke(state["messages"])})
        graph.add_node("tools", ToolNode([add]))
        graph.add_edge("__start__", "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        return graph.compile()

    given = {"messages": [{"role": "user", "content": "1 + 2?", "id": "q"}]}
    found = await ran(agent(), given)
    wanted = await agent().ainvoke(copy.deepcopy(given))
    said = [(one["type"], one["content"], one.get("tool_call_id")) for one in found["messages"]]
    assert said == [
        (one.type, one.content, getattr(one, "tool_call_id", None)) for one in wanted["messages"]
    ]
    assert [kind for kind, *_ in said] == ["human", "ai", "tool", "tool", "ai"]
