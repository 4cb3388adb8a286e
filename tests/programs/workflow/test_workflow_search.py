"""Components that search: what they refuse, what the passes make of them, what they hand on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from workflow_apps import SCHEMA

from quire.core.errors import EngineLost, InvalidArgument, ProgramFailed
from quire.programs.search import SearchResult
from quire.programs.workflow import App, Engine, Graph, Node, OptPass, Profile, find_application
from quire.programs.workflow import workflow as program_of
from quire.programs.workflow.applications import search_generation
from quire.programs.workflow.execution.scheduler import PAUSES_S
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.running import run_query
from quire.testing.local_node import scripted_node


class Words:
    """Finds a text for each word of a query. ``losses``: how often it cannot be reached first."""

    name = "words"

    def __init__(self, losses: int = 0) -> None:
        self.queries: list[str] = []
        self.losses = losses

    async def search(self, query: str, top_k: int) -> list[SearchResult]:
        self.queries.append(query)
        if self.losses:
            self.losses -= 1
            raise EngineLost("the search server cannot be used now")
        words = query.split()[:top_k]
        return [
            SearchResult(f"T {word}", f"http://x/{word}", f"about {word}", 1.0) for word in words
        ]

    async def close(self) -> None:
        pass


def searching(**config: Any) -> App:
    """A model writes three queries, all are searched for, and a model reads what was found."""
    app = App("searching", [Engine("llm"), Engine("search", profile=Profile(2))])
    expand = Node(
        "llm", {"question": "text"}, {"queries": "texts"}, "splittable",
        {"prompt": "Expand: {question}", "schema": SCHEMA}, name="expand",
    )  # fmt: skip
    search = Node(
        "search", {"queries": "texts"}, {"found": "texts"}, "batchable", config, name="search"
    )
    answer = Node(
        "llm", {"question": "text", "found": "texts"}, {"answer": "text"}, None,
        {"prompt": "Read {question} and {found}", "separator": "; "}, name="answer",
    )  # fmt: skip
    expand >> search >> answer
    app.update_template([expand, search, answer])
    return app


def said(prompt: str) -> str:
    if "Expand" in prompt:
        return '["one two", "three", "one four"]<|end|>'
    return f"read {prompt.partition('Read ')[2].partition('<')[0]}<|end|>"


def alone(**fields: Any) -> Node:
    given: dict[str, Any] = {"inputs": {"q": "text"}, "outputs": {"o": "texts"}, **fields}
    return Node("search", given.pop("inputs"), given.pop("outputs"), **given, name="find")


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (alone(inputs={"q": "vectors"}), "find: a search takes text or texts and produces texts"),
        (alone(outputs={"o": "text"}), "find: a search takes text or texts and produces texts"),
        (alone(config={"top_k": 65}), "find: top_k is 65: give 1 to 64"),
        (
            alone(config={"result": "{url}"}),
            r"find\.result: unknown part \{url\}; the parts are ti",
        ),
        (alone(config={"operation": "x"}), "configuration of find has no 'operation'"),
        (alone(annotation="splittable"), "find: only the output of a model can be splittable"),
        (alone(annotation="batchable"), "find is batchable but takes no list"),
    ],
)
def test_what_can_never_search_is_refused_with_the_template(node: Node, message: str) -> None:
    app = App("a", [Engine("search")])
    with pytest.raises(InvalidArgument, match=message):
        app.update_template([node])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"q": " \n"}, "find: the input q is empty: give words"),
        ({"q": "word " * 410}, "find: the input q has 2050 characters; at most 2048"),
    ],
)
def test_a_query_that_cannot_be_searched_for_is_refused_before_any_work(
    given: dict[str, Any], message: str
) -> None:
    app = App("a", [Engine("search")])
    app.update_template([alone()])
    with pytest.raises(InvalidArgument, match=message):
        Graph.optimize(app, given)
    with pytest.raises(InvalidArgument, match="find: top_k is 0: give 1 or more"):
        Graph.optimize(app, {"q": "word"}, {"find": {"top_k": 0}})
    listed = App("a", [Engine("search")])
    listed.update_template([alone(inputs={"q": "texts"})])
    with pytest.raises(InvalidArgument, match=message.replace("input q", r"input q\[1\]")):
        Graph.optimize(listed, {"q": ["a", given["q"]]})


@pytest.mark.parametrize("passes", [None, OptPass([])], ids=["all", "none"])
async def test_each_query_is_searched_for_and_all_is_read_in_their_order(
    passes: OptPass | None,
) -> None:
    engine = Words()
    async with scripted_node(said, search=engine) as node:
        program = program_of(searching(result="{title}: {text}"), passes)
        result = await node.run(program, json.dumps({"question": "Q"}))
    found = ("one", "two", "three", "one", "four")
    told = "; ".join(f"T {word}: about {word}" for word in found)
    assert result == {"answer": f"read Q and {told}"}
    assert engine.queries == ["one two", "three", "one four"]


@pytest.mark.parametrize("passes", [None, OptPass([])], ids=["all", "none"])
async def test_what_was_found_is_read_from_the_last_to_the_first_if_asked_for(
    passes: OptPass | None,
) -> None:
    async with scripted_node(said, search=Words()) as node:
        program = program_of(searching(), passes)
        config = json.dumps({"answer": {"last_first": True}})
        result = await node.run(program, json.dumps({"question": "Q"}), config)
    told = "; ".join(f"about {word}" for word in ("four", "one", "three", "two", "one"))
    assert result == {"answer": f"read Q and {told}"}


def searches_of(graph: Graph) -> list[Primitive]:
    found = [one for one in graph.e_graph.primitives.values() if one.op is Op.SEARCH]
    return sorted(found, key=lambda one: one.first)


def test_the_passes_hand_on_each_query_and_take_stages() -> None:
    graph = Graph.optimize(searching(), {"question": "Q"})
    searches = searches_of(graph)
    assert [(one.first, one.size) for one in searches] == [(0, 1), (1, 1), (2, 1)]
    assert [str(one.inputs["texts"]) for one in searches] == [
        f"expand.decode.{n}.out" for n in range(3)
    ]
    staged = Graph.optimize(searching(), {"question": "Q"}, passes=OptPass(["stages"]))
    assert [one.size for one in searches_of(staged)] == [2, 1]
    gathered = staged.e_graph.primitives["search.all"]
    assert gathered.size is None, "how many are found is not known before"


async def test_searches_carry_their_place_in_the_graph() -> None:
    graph = Graph.optimize(searching(), {"question": "Q"})
    async with scripted_node(said, search=Words()) as node:
        await node.run(program_of(searching()), json.dumps({"question": "Q"}))
        places = [(order.depth, order.invocation) for order in node.search.orders]
    assert places == [(one.depth, one.number) for one in searches_of(graph)]
    assert all(depth > 1 and number for depth, number in places)


@pytest.mark.parametrize("losses", [1, len(PAUSES_S) + 1])
async def test_an_engine_that_is_lost_is_asked_again_then_the_query_fails_once(
    losses: int,
) -> None:
    app = App("a", [Engine("search")])
    app.update_template([alone()])
    engine = Words(losses)
    async with scripted_node(said, search=engine) as node:
        running = node.run(program_of(app), json.dumps({"q": "word"}))
        if losses == 1:
            assert await running == {"o": ["about word"]}
            assert engine.queries == ["word", "word"]
        else:
            with pytest.raises(ProgramFailed, match="find: was tried 5 times: the search"):
                await running


async def test_a_node_without_a_search_engine_refuses_before_any_work() -> None:
    asked: list[str] = []

    def noted(prompt: str) -> str:
        asked.append(prompt)
        return said(prompt)

    async with scripted_node(noted) as node:
        with pytest.raises(ProgramFailed, match="'search' needs a search engine, and this node"):
            await node.run(program_of(searching()), json.dumps({"question": "Q"}))
    assert not asked


# -- the application -------------------------------------------------------------------------------


def proxy(kind: str) -> Any:
    def answer(prompt: str) -> str:
        if "Classify" in prompt:
            assert "Answer so far: a guess" in prompt
            return f"Answer: {kind}.<|end|>"
        if "Context:" in prompt:
            return f"Answer: read {prompt.count('about')}<|end|>"
        return "Answer: a guess<|end|>"

    return answer


@pytest.mark.parametrize(("kind", "answer"), [("search", "read 4"), ("math", "read 0")])
async def test_search_generation_searches_only_if_the_proxy_says_so(kind: str, answer: str) -> None:
    engine = Words()
    async with scripted_node(proxy(kind), search=engine) as node:
        query = {"question": "a b c d e"}
        program = program_of(find_application("search-generation"))
        assert await node.run(program, json.dumps(query)) == {"answer": answer}
    assert engine.queries == (["a b c d e"] if kind == "search" else [])


@pytest.mark.parametrize("names", [("none", None), (None, "none")])
async def test_models_are_named_by_the_application(names: tuple[str | None, str | None]) -> None:
    app = search_generation(*names)
    engine = "proxy" if names[0] else "core"
    async with scripted_node(proxy("math"), search=Words()) as node:
        with pytest.raises(ProgramFailed, match=f"engine '{engine}' names the model 'none'; the"):
            await node.run(program_of(app), json.dumps({"question": "Q"}))


async def test_models_are_named_by_component_and_checked_before_any_work() -> None:
    app = find_application("search-generation")

    async def main(api: Any) -> Any:
        config = {"answer": {"model": "none"}}
        return await run_query(api, app, {"question": "Q"}, config)

    async with scripted_node(proxy("math"), search=Words()) as node:
        with pytest.raises(ProgramFailed, match="answer names the model 'none'; the node serves"):
            await node.run(main)
        name = str(node.models()[0].id)
        config = {"guess": {"model": name}, "answer": {"model": name}}
        program = program_of(app)
        result = await asyncio.wait_for(
            node.run(program, json.dumps({"question": "Q"}), json.dumps(config)), 60
        )
    assert result == {"answer": "read 0"}
