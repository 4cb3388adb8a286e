"""What a node of a graph of LangGraph may return, and what its updates make of the state.

With LangGraph installed each graph is also run by LangGraph itself, on the same input.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import BaseModel
from state_graphs import ITS_OWN, PARTS, PRETENDED, ParentCommand, Parts, PretendedGraph
from test_workflow_langgraph_answers import State, graph_of, put, ran

from quire.core.errors import InvalidArgument, ProgramFailed
from quire.programs.workflow.imports.shared_state import Key, Update, updated


@dataclass
class Record:
    num: int = 1
    found: Annotated[list[str], operator.add] = ()  # type: ignore[assignment]
    answer: str | None = "none"


class Model(BaseModel):
    num: int = 1
    found: Annotated[list[str], operator.add] = []
    answer: str | None = None


def several(parts: Parts) -> Any:
    """A list of commands and updates, as ``ToolNode`` returns it."""

    def a(state: Any) -> Any:
        return [
            parts.command(update={"found": ["a1"]}, goto="b"),
            {"found": ["a2"]},
            parts.command(update=[("found", ["a3"]), ("num", 7)], goto=parts.send("c", {"num": 5})),
            None,
        ]

    graph = graph_of(
        parts.graph, ("__start__", "a"), b=put("b"), c=lambda state: {"found": [f"c{state['num']}"]}
    )  # fmt: skip
    graph.add_node("a", a, destinations=("b", "c"))
    return graph


def returning(schema: type, found: Callable[[Parts, Any], Any]) -> Callable[[Parts], Any]:
    return lambda parts: graph_of(
        parts.graph, ("__start__", "a"), schema=schema, a=lambda state: found(parts, state)
    )


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(
    ("make", "state", "wanted"),
    [
        (several, {}, {"found": ["a1", "a2", "a3", "b", "c5"], "num": 7}),
        (returning(Record, lambda parts, state: Record(5, ["x"], None)), {"found": ["w"]},
         {"num": 5, "found": ["w", "x"], "answer": None}),
        (returning(Record, lambda parts, state: parts.command(update=Record(5, ["x"]))), {},
         {"num": 5, "found": ["x"], "answer": "none"}),
        (returning(Model, lambda parts, state: Model(num=5)), {"answer": "kept"},
         {"num": 5, "found": [], "answer": "kept"}),
        (returning(Model, lambda parts, state: Model(answer=None)), {"answer": "lost"},
         {"num": 1, "found": [], "answer": None}),
        (returning(State, lambda parts, state: {"found": {"__overwrite__": ["x"]}}),
         {"found": ["w"]}, {"found": ["x"]}),
        (returning(State, lambda parts, state: {
            "found": {"value": ["x"], "type": "__overwrite__"}
        }), {"found": ["w"]}, {"found": ["x"]}),
    ],
)  # fmt: skip
async def test_it_sets_what_it_sets_in_langgraph(
    parts: Parts,
    make: Callable[[Parts], Any],
    state: dict[str, Any],
    wanted: Mapping[str, Any],
) -> None:
    found = await ran(make(parts), state)
    assert found == wanted
    if parts is not PRETENDED:
        assert found == await make(parts).compile().ainvoke(copy.deepcopy(state))


@pytest.mark.parametrize("parts", PARTS)
async def test_what_is_no_update_is_refused(parts: Parts) -> None:
    class Other(BaseModel):
        text: str = "x"

    class Bare:
        num = 1

    for odd in ("text", ["text"], Other(), Bare()):
        graph = returning(State, lambda parts, state, odd=odd: odd)(parts)
        with pytest.raises(ProgramFailed, match=r"the node 'a' returned .*: return an object with"):
            await ran(graph, {})


class Overwrite:
    def __init__(self, value: Any) -> None:
        self.value = value


def updates(*given: tuple[Any, ...]) -> list[Update]:
    return [
        Update((step, 0, node), node, frozenset(), ((key, value),))
        for step, node, key, value in given
    ]


def test_an_overwrite_replaces_the_value_of_its_step() -> None:
    keys = {"all": Key(operator.add, []), "one": Key()}
    given = updates((1, "a", "all", [1]), (1, "b", "all", Overwrite([2])), (1, "c", "all", [3]))
    behind = updates((2, "a", "all", [4]), (3, "a", "all", Overwrite([5])), (4, "a", "all", [6]))
    assert updated(keys, {"all": [0]}, given) == {"all": [2]}
    assert updated(keys, {"all": [0]}, [*given, *behind[:1]]) == {"all": [2, 4]}
    assert updated(keys, {"all": [0]}, [*given, *behind]) == {"all": [5, 6]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (updates((1, "a", "all", Overwrite([1])), (1, "b", "all", Overwrite([2]))),
         "a and b both set 'all' to an Overwrite in one step: let one of them do so"),
        (updates((1, "a", "one", Overwrite(1))),
         "a sets 'one' to an Overwrite, and the key has no reducer: set it to the value itself"),
    ],
)  # fmt: skip
def test_an_overwrite_that_has_no_meaning_is_refused(given: list[Update], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        updated({"all": Key(operator.add, []), "one": Key()}, {}, given)


async def test_a_subgraph_leads_on_in_its_parent_graph() -> None:
    def sub(state: Any) -> Any:
        raise ParentCommand(PRETENDED.command(update={"found": ["sub"]}, goto="b", graph=""))

    def top(state: Any) -> Any:
        raise ParentCommand(PRETENDED.command(goto="b", graph="__parent__"))

    graph = graph_of(PretendedGraph, ("__start__", "a"), b=put("b"))
    graph.add_node("a", sub, destinations=("b",))
    assert (await ran(graph, {}))["found"] == ["sub", "b"]
    graph.add_node("a", top, destinations=("b",))
    with pytest.raises(ProgramFailed, match="'a' returned a Command for another graph"):
        await ran(graph, {})


@pytest.mark.skipif(ITS_OWN.graph is None, reason="LangGraph is not installed")
async def test_a_handoff_of_an_agent_answers_as_in_langgraph() -> None:
    """A tool of the agent ``alice`` leads to ``bob``, a node of the graph around it."""
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langgraph.graph import MessagesState
    from langgraph.prebuilt import ToolNode
    from langgraph.types import Command

    @tool
    def hand_on() -> Any:
        """Hand on."""
        said = ToolMessage("handed on", tool_call_id="1", id="t")
        return Command(goto="bob", graph=Command.PARENT, update={"messages": [said]})

    call = {"name": "hand_on", "args": {}, "id": "1"}

    def made() -> Any:
        alice = ITS_OWN.graph(MessagesState)
        alice.add_node(
            "model", lambda state: {"messages": [AIMessage("", tool_calls=[call], id="m")]}
        )
        alice.add_node("tools", ToolNode([hand_on]))
        alice.add_edge("__start__", "model")
        alice.add_edge("model", "tools")
        graph = ITS_OWN.graph(MessagesState)
        graph.add_node("alice", alice.compile(), destinations=("bob",))
        graph.add_node("bob", lambda state: {"messages": [AIMessage("bob", id="b")]})
        graph.add_edge("__start__", "alice")
        return graph.compile()

    state = {"messages": [{"role": "user", "content": "who?", "id": "q"}]}
    found = await ran(made(), state)
    wanted = await made().ainvoke({"messages": [HumanMessage("who?", id="q")]})
    said = [(one["type"], one["content"]) for one in found["messages"]]
    assert said == [(one.type, one.content) for one in wanted["messages"]]
    assert [content for _, content in said] == ["who?", "handed on", "bob"]
