"""Odd graphs of LangGraph answer as LangGraph does, or are refused by name while they run.

With LangGraph installed each graph is also run by LangGraph itself, on the same input.
"""

from __future__ import annotations

import copy
import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from state_graphs import PARTS, PRETENDED, Parts, PretendedGraph

from quire.core.errors import ProgramFailed
from quire.programs.workflow import workflow
from quire.programs.workflow.imports import import_state_graph
from quire.programs.workflow.imports.shown_state import ShownState
from quire.testing import LocalNode


class State(TypedDict):
    question: str
    num: int
    found: Annotated[list[str], operator.add]
    answer: str


@dataclass
class Record:
    question: str
    num: int = 1


def first_or(before: str | None, new: str) -> str:
    return new if before is None else before


class Kept(TypedDict):
    first: Annotated[str | None, first_or]


def put(text: str) -> Callable[[Any], Any]:
    return lambda state: {"found": [text]}


def told(state: Any) -> Any:
    return {"answer": ",".join(state["found"])}


def sent(state: Any) -> Any:
    return {"found": [f"w{state['num']}"]}


def graph_of(made: Any, *edges: tuple[Any, str], schema: Any = State, **nodes: Any) -> Any:
    graph = made(schema)
    for name, function in nodes.items():
        graph.add_node(name, function)
    for start, end in edges:
        graph.add_edge(start, end)
    return graph


async def ran(graph: Any, state: Mapping[str, Any]) -> Any:
    async with LocalNode() as local:
        program = workflow(import_state_graph(graph, "imported"))
        return (await local.run(program, json.dumps({"state": state})))["result"]


def mapped(parts: Parts) -> Any:
    """Map and reduce: a run of ``work`` for each number, and one of ``plain`` beside them."""

    def fan(state: Any) -> Any:
        return [*(parts.send("work", {"num": one}) for one in range(state["num"])), "plain"]

    graph = graph_of(
        parts.graph, ("__start__", "plan"), (["work", "plain"], "reduce"),
        plan=put("plan"), work=sent, plain=put("plain"), reduce=told,
    )  # fmt: skip
    graph.add_conditional_edges("plan", fan, ["work", "plain"])
    return graph


def sent_onwards(parts: Parts) -> Any:
    """Two that send to the same node, whose runs send to the next."""

    def fan(name: str) -> Callable[[Any], Any]:
        return lambda state: [parts.send("work", {"num": f"{name}{one}"}) for one in (1, 2)]

    def onwards(state: Any) -> Any:
        return [parts.send("last", {"num": state["found"][-1]})]

    graph = graph_of(
        parts.graph, ("__start__", "z"), ("__start__", "c"), z=put("z"), c=put("c"), work=sent,
        last=sent,
    )  # fmt: skip
    for name in ("z", "c"):
        graph.add_conditional_edges(name, fan(name), ["work"])
    graph.add_conditional_edges("work", onwards, ["last"])
    return graph


def commanded(parts: Parts) -> Any:
    def route(state: Any) -> Any:
        goto = [parts.send("work", {"num": 7}), "polite"] if state["num"] else "rude"
        return parts.command(goto=goto, update={"found": ["route"]})

    graph = graph_of(
        parts.graph, ("__start__", "route"), ("polite", "last"), ("rude", "last"),
        ("work", "last"), work=sent, polite=put("polite"), rude=put("rude"), last=told,
    )  # fmt: skip
    graph.add_node("route", route, destinations=("work", "polite", "rude"))
    return graph


def updating(parts: Parts) -> Any:
    def first(state: Any) -> Any:
        return parts.command(update={"found": ["first"]})

    return graph_of(parts.graph, ("__start__", "first"), ("first", "last"), first=first, last=told)


def named_backwards(parts: Parts) -> Any:
    """Updates of one step are in the order of the names."""
    return graph_of(
        parts.graph, ("__start__", "zeta"), ("__start__", "alpha"), (["zeta", "alpha"], "last"),
        zeta=put("zeta"), alpha=put("alpha"), last=told,
    )  # fmt: skip


def overwritten_later(parts: Parts) -> Any:
    """Two overwrite a key in different steps: the later one holds."""
    return graph_of(
        parts.graph, ("__start__", "long"), ("__start__", "short"), ("long", "longer"),
        long=put("long"), short=lambda state: {"answer": "short"},
        longer=lambda state: {"answer": "longer"},
    )  # fmt: skip


def late_parent(parts: Parts) -> Any:
    """``told`` runs in step 2. One that might lead to it too, and does not, ends in step 2."""
    graph = graph_of(
        parts.graph, ("__start__", "quick"), ("__start__", "slow"), ("slow", "slower"),
        ("quick", "told"), quick=lambda state: {"answer": "quick"}, slow=lambda state: {},
        slower=put("slower"), told=told,
    )  # fmt: skip
    graph.add_conditional_edges("slower", lambda state: "__end__", ["told", "__end__"])
    return graph


def chosen_by_none(parts: Parts) -> Any:
    graph = graph_of(parts.graph, ("__start__", "a"), a=put("a"), b=put("b"))
    graph.add_conditional_edges("a", lambda state: None, {"b": "b", None: "__end__"})
    return graph


def recorded(parts: Parts) -> Any:
    """Branches see the state in its own form."""
    graph = graph_of(
        parts.graph, ("__start__", "a"), schema=Record, a=lambda state: {"num": state.num + 1},
        b=lambda state: {"question": state.question * state.num},
    )  # fmt: skip
    graph.add_conditional_edges("a", lambda state: "b" if state.num == 2 else "__end__", ["b"])
    return graph


def kept(parts: Parts) -> Any:
    """The reducer's type has no value of its own, so the first update is the first value."""
    return graph_of(
        parts.graph, ("__start__", "a"), ("a", "b"), schema=Kept, a=lambda state: {"first": "a"},
        b=lambda state: {"first": "b"},
    )  # fmt: skip


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(
    ("make", "state", "wanted"),
    [
        (mapped, {"num": 2}, {"answer": "plan,plain,w0,w1"}),
        (mapped, {"num": 0}, {"found": ["plan", "plain"]}),
        (sent_onwards, {}, {"found": [
            "c", "z", "wc1", "wc2", "wz1", "wz2", "wwc1", "wwc2", "wwz1", "wwz2"
        ]}),
        (commanded, {"num": 1}, {"answer": "route,polite,w7"}),
        (commanded, {"num": 0}, {"answer": "route,rude"}),
        (updating, {}, {"answer": "first"}),
        (named_backwards, {"found": ["given"]}, {"answer": "given,alpha,zeta"}),
        (overwritten_later, {}, {"answer": "longer"}),
        (late_parent, {}, {"answer": ""}),
        (chosen_by_none, {}, {"found": ["a"]}),
        (recorded, {"question": "x"}, {"question": "xx"}),
        (kept, {}, {"first": "a"}),
        (kept, {"first": "given"}, {"first": "given"}),
    ],
)  # fmt: skip
async def test_it_answers_as_langgraph_does(
    parts: Parts,
    make: Callable[[Parts], Any],
    state: dict[str, Any],
    wanted: Mapping[str, Any],
) -> None:
    graph = make(parts)
    found = await ran(graph, state)
    assert {name: found[name] for name in wanted} == wanted
    if parts is not PRETENDED:
        assert found == await graph.compile().ainvoke(copy.deepcopy(state))


async def test_a_node_gets_the_config_of_the_compiled_graph() -> None:
    def named(state: Any, config: Any) -> Any:
        return {"answer": config["configurable"]["who"]}

    graph = graph_of(PretendedGraph, ("__start__", "a"), a=named)
    config = {"configurable": {"who": "Lin"}}
    compiled = type("Compiled", (), {"builder": graph, "config": config})()
    assert (await ran(compiled, {}))["answer"] == "Lin"


def reading_beside(parts: Parts) -> Any:
    """``told`` reads in step 2 what ``beside`` sets in step 1, and does not wait for it."""
    return graph_of(
        parts.graph, ("__start__", "a"), ("__start__", "beside"), ("a", "told"),
        a=put("a"), beside=put("beside"), told=told,
    )  # fmt: skip


def branching_beside(parts: Parts) -> Any:
    graph = graph_of(
        parts.graph, ("__start__", "a"), ("__start__", "beside"), ("a", "b"),
        a=put("a"), b=put("b"), beside=lambda state: {"num": 2},
    )  # fmt: skip
    graph.add_conditional_edges(
        "b", lambda state: (state.get("num", 0) and "__end__") or "c", ["c"]
    )
    graph.add_node("c", put("c"))
    return graph


def returning(made: Callable[[Parts], Any]) -> Callable[[Parts], Any]:
    def make(parts: Parts) -> Any:
        graph = graph_of(parts.graph, ("__start__", "a"), ("a", "b"), b=put("b"))
        graph.add_node("a", lambda state: made(parts), destinations=("b",))
        return graph

    return make


def changing(state: Any) -> Any:
    state["found"].append("sneaked in")
    return {"answer": "x"}


def unfit(parts: Parts) -> Any:
    return graph_of(parts.graph, ("__start__", "a"), schema=Record, a=lambda state: {})


def sending_elsewhere(parts: Parts) -> Any:
    graph = graph_of(parts.graph, ("__start__", "a"), a=put("a"), b=put("b"))
    graph.add_conditional_edges("a", lambda state: [parts.send("a", {})], ["b"])
    return graph


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (reading_beside, "told reads 'found', which beside sets in an earlier step, and no edge"),
        (branching_beside, "b reads 'num', which beside sets in an earlier step, and no edge"),
        (returning(lambda parts: parts.command(goto="a")), r"goes to 'a', and does not say so: .*"
         r"Command\[Literal\['a'\]\]"),
        (returning(lambda parts: parts.command(goto="b", graph="__parent__")),
         "returned a Command for another graph, or one that resumes"),
        (returning(lambda parts: ["b"]), r"returned \['b'\] \(list\): return an object"),
        (returning(lambda parts: {"__interrupt__": []}), "was interrupted: a query runs to"),
        (returning(lambda parts: {"num": float("nan")}), "'num' holds nan, which JSON has"),
        (sending_elsewhere, "a sends to 'a', which its path_map does not name"),
        (unfit, r"a: the state is no Record: .*missing 1 required .* 'question'"),
        (lambda parts: graph_of(parts.graph, ("__start__", "a"), a=changing),
         "a changes 'found' of the state in place: copy it, and return what it becomes"),
    ],
)  # fmt: skip
async def test_what_langgraph_would_answer_differently_is_refused(
    parts: Parts, make: Callable[[Parts], Any], message: str
) -> None:
    with pytest.raises(ProgramFailed, match=message):
        await ran(make(parts), {})


async def test_an_error_names_the_line_of_the_node() -> None:
    graph = graph_of(PretendedGraph, ("__start__", "a"), a=lambda state: {"answer": state["num"]})
    with pytest.raises(ProgramFailed, match=r"KeyError: 'num' \(test_workflow_langgraph_"):
        await ran(graph, {})


@pytest.mark.parametrize(
    ("use", "read"),
    [
        (lambda shown: shown["a"], {"a"}),
        (lambda shown: shown.get("b"), {"b"}),
        (lambda shown: "a" in shown, set()),
        (lambda shown: "b" in shown, {"b"}),
        (lambda shown: list(shown), {"b"}),
        (lambda shown: list(reversed(shown)), {"b"}),
        (lambda shown: len(shown), {"b"}),
        (lambda shown: shown.keys(), {"b"}),
        (lambda shown: shown.pop("a"), {"a"}),
        (lambda shown: shown.popitem(), {"a", "b"}),
        (lambda shown: shown.setdefault("b", 1), {"b"}),
        (lambda shown: {**shown}, {"a", "b"}),
        (lambda shown: dict(shown), {"a", "b"}),
        (lambda shown: shown | {}, {"a", "b"}),
        (lambda shown: {} | shown, {"a", "b"}),
        (lambda shown: shown.copy(), {"a", "b"}),
        (copy.copy, {"a", "b"}),
        (copy.deepcopy, {"a", "b"}),
        (json.dumps, {"a", "b"}),
        (repr, {"a", "b"}),
        (lambda shown: shown == {}, {"a", "b"}),
        (lambda shown: shown != {}, {"a", "b"}),
        (lambda shown: [*shown.values()], {"a", "b"}),
        (lambda shown: shown.update(b=2), set()),
    ],
)
def test_a_state_notes_what_is_read(use: Callable[[Any], Any], read: set[str]) -> None:
    shown = ShownState({"a": 1}, ("a", "b"))
    use(shown)
    assert shown.read == read
