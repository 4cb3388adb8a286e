"""LangGraph's state graphs as applications: what they answer, what they wait for, what is refused.

With LangGraph installed each graph is LangGraph's own.
"""

from __future__ import annotations

import asyncio
import json
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from state_graphs import PretendedGraph, graph_classes

from quire.core.errors import InvalidArgument, ProgramFailed
from quire.programs.workflow import App, Graph, find_application, workflow
from quire.programs.workflow.imports import import_state_graph, is_state_graph
from quire.programs.workflow.imports.shared_state import Key, Update, state_of
from quire.testing import LocalNode


class State(TypedDict):
    question: str
    found: Annotated[list[str], operator.add]
    answer: str


def found(text: str) -> Callable[[Any], Any]:
    return lambda state: {"found": [text]}


def answered(text: str) -> Callable[[Any], Any]:
    return lambda state: {"answer": text + ", ".join(state["found"])}


def graph_of(made: Any, *edges: tuple[str | list[str], str], **nodes: Callable[[Any], Any]) -> Any:
    graph = made(State)
    for name, function in nodes.items():
        graph.add_node(name, function)
    for start, end in edges:
        graph.add_edge(start, end)
    return graph


async def ran(graph: Any, **state: Any) -> Any:
    async with LocalNode() as local:
        program = workflow(import_state_graph(graph, "imported"))
        return (await local.run(program, json.dumps({"state": state})))["result"]


@pytest.mark.parametrize("made", graph_classes)
async def test_updates_are_joined_on_the_way(made: Any) -> None:
    async def last(state: Any) -> Any:
        return {"answer": f"{state['question']} {sorted(state['found'])}"}

    graph = graph_of(
        made, ("__start__", "a"), ("__start__", "b"), (["a", "b"], "last"), ("last", "__end__"),
        a=found("a"), b=found("b"), last=last,
    )  # fmt: skip
    assert await ran(graph, question="Who?", found=["given"]) == {
        "question": "Who?", "found": ["given", "a", "b"], "answer": "Who? ['a', 'b', 'given']"
    }  # fmt: skip
    if made is not PretendedGraph:
        wanted = await graph.compile().ainvoke({"question": "Who?", "found": ["given"]})
        assert await ran(graph.compile(), question="Who?", found=["given"]) == wanted


@pytest.mark.parametrize("made", graph_classes)
async def test_no_branch_waits_for_a_slow_sibling(made: Any) -> None:
    """In supersteps ``after`` would wait for ``slow``, which waits for it: neither would end."""
    reached = asyncio.Event()

    async def slow(state: Any) -> Any:
        await reached.wait()
        return {"found": ["slow"]}

    async def after(state: Any) -> Any:
        reached.set()
        return {"found": ["after"]}

    graph = graph_of(
        made, ("__start__", "quick"), ("__start__", "slow"), ("quick", "after"),
        (["after", "slow"], "last"), quick=found("quick"), slow=slow, after=after,
        last=answered(""),
    )  # fmt: skip
    assert set((await asyncio.wait_for(ran(graph), 60))["found"]) == {"quick", "slow", "after"}


@pytest.mark.parametrize("made", graph_classes)
@pytest.mark.parametrize(("question", "answer"), [("Who?", "please "), ("Who", "now ")])
async def test_a_branch_runs_what_it_leads_to(made: Any, question: str, answer: str) -> None:
    def route(state: Any) -> str:
        return "ask" if state["question"].endswith("?") else "order"

    graph = graph_of(
        made, ("__start__", "first"), ("polite", "joined"), ("rude", "joined"),
        first=found("first"), polite=answered("please "), rude=answered("now "),
        joined=found("joined"), never=found("never"),
    )  # fmt: skip
    graph.add_conditional_edges("first", route, {"ask": "polite", "order": "rude"})
    graph.add_edge(["polite", "rude"], "never")
    result = await ran(graph, question=question)
    assert result["answer"] == f"{answer}first"
    assert result["found"] == ["first", "joined"], "'never' would need both"


def test_the_graph_has_an_edge_for_each_of_langgraphs() -> None:
    graph = graph_of(
        PretendedGraph, ("__start__", "a"), ("a", "b"), ("__start__", "c"),
        a=found("a"), b=found("b"), c=found("c"),
    )  # fmt: skip
    app = import_state_graph(graph, "imported")
    e_graph = Graph.optimize(app, {"state": {}}).e_graph
    assert e_graph.ancestors["node_b"] == {"start", "node_a"}
    assert e_graph.ancestors["node_c"] == {"start"}
    assert app.query_inputs == {"state": "object"}
    with pytest.raises(InvalidArgument, match=r"the input 'state' is \[1\]: give an object"):
        Graph.optimize(app, {"state": [1]})


def one(**fields: Any) -> PretendedGraph:
    graph = PretendedGraph(State)
    graph.add_node("a", found("a"), **fields)
    graph.add_edge("__start__", "a")
    return graph


def leading_nowhere() -> PretendedGraph:
    graph = one()
    graph.add_edge("a", "c")
    return graph


def rooted() -> PretendedGraph:
    graph = one()
    graph.channels["__root__"] = graph.channels.pop("found")
    return graph


def taking_runtime() -> PretendedGraph:
    def node(state: Any, runtime: Any = None) -> Any:
        return {}

    graph = one()
    graph.add_node("b", node)
    return graph


def managing() -> PretendedGraph:
    graph = one()
    graph.managed["it"] = object
    return graph


def alike() -> PretendedGraph:
    graph = one()
    graph.add_node("b-c", found("b"))
    graph.add_node("b c", found("b"))
    return graph


def keyed(channel: object) -> PretendedGraph:
    graph = one()
    graph.channels["odd"] = channel
    return graph


def compiled(**fields: Any) -> Any:
    return type("Compiled", (), {"builder": one(), **fields})()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (one(retry_policy=object()), "sets retry_policy, .* repeat what may fail inside the node"),
        (PretendedGraph(State), "no edge leads from START: add_edge"),
        (leading_nowhere(), "leads from a to c, and no node is called 'c': the nodes are a"),
        (rooted(), "the state is one value: here it is an object with keys"),
        (
            managing(),
            r"the state has the managed values it, which nothing here manages: .*IsLastStep",
        ),
        (taking_runtime(), "the node 'b' takes runtime beside the state"),
        (alike(), "the nodes 'b c' and 'b-c' look alike as names of components: rename one"),
        (keyed(object()), "the state's key 'odd' is of the kind object: here a key is overwritten"),
        (
            compiled(interrupt_before_nodes=["a"]),
            "compiled with interrupt_before_nodes, .* ask",
        ),
        (compiled(checkpointer=object()), "compiled with checkpointer, .*: compile the graph with"),
    ],
)
def test_what_is_not_imported_is_refused_by_name(
    graph: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "langgraph.runtime", raising=False)
    assert is_state_graph(graph)
    with pytest.raises(InvalidArgument, match=message):
        import_state_graph(graph, "imported")


@pytest.mark.parametrize(
    ("node", "state", "message"),
    [
        (lambda state: ["x"], {}, r"the node 'a' returned \['x'\] \(list\): return"),
        (lambda state: {"other": 1}, {}, "a sets 'other', which is no key of the state; it has"),
        (found("x"), {"other": 1}, "give an object with some of the keys answer, found, question"),
        (lambda state: {"answer": object()}, {}, "the state's 'answer' holds a object"),
        (
            lambda state: {"answer": 1 // 0}, {},
            r"node_a: its function 'node_a' raised ZeroDivisionError: .* "
            r"\(test_workflow_langgraph\.py, line \d+\): correct the function",
        ),
    ],
)  # fmt: skip
async def test_a_node_that_breaks_a_rule_is_named(node: Any, state: Any, message: str) -> None:
    graph = graph_of(PretendedGraph, ("__start__", "a"), a=node)
    with pytest.raises(ProgramFailed, match=message):
        await ran(graph, **state)


async def test_a_branch_that_leads_nowhere_is_named() -> None:
    graph = one()
    graph.add_conditional_edges("a", lambda state: "x", {"y": "__end__"})
    with pytest.raises(ProgramFailed, match="the branch '<lambda>' of a returned 'x'; it may"):
        await ran(graph)


def updates(*given: Update) -> dict[Any, Update]:
    return {one.place: one for one in given}


def test_two_that_overwrite_one_key_side_by_side_are_refused() -> None:
    keys = {"x": Key(), "all": Key(operator.add, [])}
    first = Update((1, 0, "a"), "a", frozenset(), (("x", 1), ("all", [1])))
    behind = Update((2, 0, "b"), "b", frozenset({first.place}), (("x", 2), ("all", [2])))
    beside = Update((1, 0, "b"), "b", frozenset(), (("x", 2),))
    again = Update((1, 1, (0, 0, "s"), 0), "a", frozenset(), (("x", 2),))
    twice = Update((1, 0, "a"), "a", frozenset(), (("x", 1), ("x", 2)))
    assert state_of(keys, {"x": 0}, updates(first, behind)) == {"x": 2, "all": [1, 2]}
    with pytest.raises(InvalidArgument, match="a and b both set 'x' side by side: give the key a"):
        state_of(keys, {}, updates(first, beside))
    with pytest.raises(InvalidArgument, match="several runs of a set 'x' side by side"):
        state_of(keys, {}, updates(first, again))
    with pytest.raises(InvalidArgument, match="several values of a set 'x' side by side"):
        state_of(keys, {}, updates(twice))


def test_a_graph_of_a_file_is_found(tmp_path: Path) -> None:
    folder = Path(__file__).parent
    file = tmp_path / "mine.py"
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(folder)!r})\n"
        "from test_workflow_langgraph import one\ngraph = one()\nsys.path.pop(0)\n"
    )
    app = find_application(f"{file}:graph")
    assert isinstance(app, App)
    assert (app.name, [node.name for node in app.nodes]) == ("mine", ["start", "node_a", "finish"])
    with file.open("a") as more:
        more.write(
            "def made():\n    return graph\ndef of(what):\n    return graph\n"
            "def broken():\n    return 1 / 0\n"
        )
    assert [node.name for node in find_application(f"{file}:made").nodes] == [
        "start", "node_a", "finish"
    ]  # fmt: skip
    with pytest.raises(InvalidArgument, match=r":of\(\) does not make .* without arguments: "):
        find_application(f"{file}:of")
    with pytest.raises(InvalidArgument, match=r"ZeroDivisionError: .*\n(.*\n)+.*in broken"):
        find_application(f"{file}:broken")
