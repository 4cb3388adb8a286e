"""What runs ahead never changes an answer, has no effect, and is kept only if it was right."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workflow_apps import QUERY, advanced
from workflow_random import RandomApp
from workflow_reference import ReferenceRun
from workflow_speculating import SpeculatingRun

from quire.core.calls import SPARE_PRIORITY
from quire.core.errors import InvalidArgument
from quire.programs.inferlet import inferlet
from quire.programs.search import SearchResult
from quire.programs.workflow import App, Engine, Graph, Node, OptPass, StepLog, run_query
from quire.programs.workflow.execution.scheduler import GraphScheduler
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.passes import STANDARD
from quire.programs.workflow.speculation import Experience
from quire.testing.local_node import scripted_node

ALL = [*(name for name, _ in STANDARD), "speculate"]
DOCUMENTS = [{"name": "a", "text": " ".join(f"w{n}" for n in range(30))}]
GIVEN = {"question": "Who?", "items": ["a", "b", "c"], "documents": DOCUMENTS}


def drawn_experience(seed: int, app: App) -> Experience:
    """Of what comes out any way, so that suppositions are right and wrong."""
    chance, experience = Random(seed), Experience()
    for node in app.nodes:
        for _ in range(chance.randint(0, 8)):
            experience.note(node.name, chance.choice([0.0, 1.0]))
    return experience


@settings(max_examples=60)
@given(st.data())
def test_a_random_graph_gives_the_same_answer_when_primitives_run_ahead(
    data: st.DataObject,
) -> None:
    drawn = RandomApp(data.draw, branches=True)
    app = drawn.app(data.draw(st.integers(1, 4)))
    seed = data.draw(st.integers(0, 1 << 30))
    query = {name: GIVEN[name] for name in app.query_inputs}
    names = data.draw(st.sampled_from([ALL, ["prune", "speculate"], ["speculate"]]))
    graph = Graph.optimize(app, query, passes=OptPass(names))
    wanted = ReferenceRun(graph.p_graph, graph.query, Random(seed)).results()
    for hurry in (0, 1, 8):
        run = SpeculatingRun(
            graph.e_graph, graph.query, Random(seed), drawn_experience(seed, app), hurry
        )
        assert run.results() == wanted
        assert not run.with_effects, "something that may have an effect has run ahead"
        assert run.num_kept + run.num_dropped == len(run.begun)


# -- rankings ------------------------------------------------------------------------------------


class Ranked:
    """Runs everything at once but the ranking, which waits until ``ended``; ``kept_order``: of so
    many texts it keeps the order in which they were found, the others come behind, last first."""

    def __init__(self, graph: Graph, kept_order: int) -> None:
        self._reference = ReferenceRun(graph.e_graph, graph.query, Random(0))
        self._kept_order = kept_order
        self.ended = asyncio.Event()
        self.ran: list[tuple[str, int]] = []

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        self.ran.append((primitive.id, primitive.priority))
        if primitive.op is not Op.RERANKING:
            return self._reference.outputs(primitive, inputs)
        await self.ended.wait()
        places = range(primitive.first, primitive.first + len(inputs["texts"]))
        return {"out": [1000 - place if place < self._kept_order else place for place in places]}

    async def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
async def test_an_answer_begins_with_what_was_found_before_it_is_ranked(num_right: int) -> None:
    graph = Graph.optimize(advanced(), QUERY, passes=OptPass(ALL))

    async def answered(experience: Experience | None) -> tuple[Any, Ranked, StepLog]:
        runner, log = Ranked(graph, num_right), StepLog()
        runners = dict.fromkeys(graph.app.engines, runner)
        scheduler = GraphScheduler(
            graph.e_graph, graph.query, runners, lambda: 0.0, log, experience=experience
        )
        running = asyncio.create_task(scheduler.run())
        for _ in range(200):
            await asyncio.sleep(0)
        runner.ended.set()
        return await running, runner, log

    wanted, plain, _ = await answered(None)
    result, runner, log = await answered(Experience())
    assert result == wanted
    early = [one for one, _ in runner.ran if one.endswith("decode")]
    assert {"answer.0.decode", "answer.1.decode", "answer.2.decode"} <= set(early)
    kept = [step.primitive.id for step in log.steps if step.ahead and "decode" in step.primitive.id]
    assert kept == [f"answer.{n}.decode" for n in range(num_right)]
    num_more = len(runner.ran) - len(plain.ran)
    assert num_more == log.speculation.num_dropped, "nothing that was kept ran twice"
    assert all(p == SPARE_PRIORITY for one, p in runner.ran if runner.ran.count((one, p)) > 1)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"function": "shout"}, "does not run ahead: may have an effect"),
        ({"function": "shout", "effects": ["mail"]}, "does not run ahead: may have an effect"),
    ],
)
def test_what_may_have_an_effect_never_runs_ahead(changed: dict[str, Any], why: str) -> None:
    app = branching()
    nodes = {node.name: node for node in app.nodes}
    nodes["shout"].config = changed
    app.update_template(list(app.nodes))
    graph = Graph.optimize(app, {"question": "Who?"}, passes=OptPass(ALL))
    assert not graph.e_graph.primitives["shout"].ahead
    assert [note.text for note in graph.notes if note.where == "shout"] == [why]
    assert graph.e_graph.primitives["search"].ahead
    assert not any(one.ahead for one in graph.p_graph.primitives.values())


def test_a_condition_says_what_it_likely_is() -> None:
    graph = Graph.optimize(branching(likely=False), {"question": "Who?"}, passes=OptPass(ALL))
    (note,) = [note for note in graph.notes if note.where == "needs"]
    assert note.text == "is supposed to be false (stated) until it is decided"
    with pytest.raises(InvalidArgument, match="likely is 'mostly': give true or false"):
        branching(likely="mostly")


# -- on a node -------------------------------------------------------------------------------------


class Finder:
    """A search engine that finds what it is asked for."""

    name, at_once = "finder", 2

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def search(self, query: str, top_k: int) -> list[SearchResult]:
        self.asked.append(query)
        return [SearchResult("t", "a", f"found {query}", 1.0)]

    async def close(self) -> None:
        """Nothing is held."""


def branching(**condition: Any) -> App:
    """A model guesses and judges; a search and a pure tool run if it is not sure; another answer
    reads all."""
    functions = {"shout": lambda found: [text.upper() for text in found]}
    app = App(
        "branching",
        [
            Engine("llm"),
            Engine("search"),
            Engine("tool", config={"functions": functions}),
        ],
    )
    guess = Node(
        "llm", {"question": "text"}, {"draft": "text"}, config={"prompt": "{question}"},
        name="guess",
    )  # fmt: skip
    judge = Node(
        "llm", {"question": "text", "draft": "text"}, {"kind": "text"},
        config={"prompt": "Judge {draft} for {question}", "answer_after": "Kind:"}, name="judge",
    )  # fmt: skip
    needs = Node(
        "condition", {"kind": "text"}, {"unsure": "boolean"},
        config={"equals": "search", **condition}, name="needs",
    )  # fmt: skip
    search = Node("search", {"question": "text"}, {"found": "texts"}, name="search", when="unsure")
    shout = Node(
        "tool", {"found": "texts"}, {"loud": "texts"},
        config={"function": "shout", "pure": True}, name="shout", when="unsure",
    )  # fmt: skip
    answer = Node(
        "llm", {"question": "text", "draft": "text", "loud": "texts"}, {"answer": "text"},
        config={"prompt": "Answer {question} by {draft} and {loud}"}, name="answer",
    )  # fmt: skip
    guess >> judge >> needs >> search >> shout >> answer
    app.update_template([guess, judge, needs, search, shout, answer])
    return app


def said(prompt: str) -> str:
    if "Judge" in prompt:
        kind = "search" if "baker" in prompt else "chat"
        return f"{'well, ' * 20}Kind: {kind}<|end|>"
    if "Answer" in prompt:
        return f"it is {'FOUND' in prompt}<|end|>"
    return "a guess<|end|>"


async def asked(
    app: App, question: str, names: list[str]
) -> tuple[dict[str, Any], StepLog, Finder]:
    log, finder = StepLog(), Finder()

    @inferlet()
    async def main(api: Any) -> dict[str, Any]:
        query = {"question": question}
        return await run_query(api, app, query, passes=OptPass(names), watcher=log)

    async with scripted_node(said, page_size=4, search=finder) as local:
        result: dict[str, Any] = await local.run(main)
        assert local.controller.statistics().engines[0].pool.num_held == 0
        local.controller.check_invariants()
    return result, log, finder


@pytest.mark.parametrize("likely", [True, False])
@pytest.mark.parametrize("question", ["Who is the baker?", "Who are you?"])
async def test_the_likelier_branch_runs_before_the_condition_is_decided(
    likely: bool, question: str
) -> None:
    plain, _, asked_plainly = await asked(branching(), question, ALL[:-1])
    result, log, finder = await asked(branching(likely=likely), question, ALL)
    assert result == plain
    is_right = likely == ("baker" in question)
    kept = {step.primitive.node for step in log.steps if step.ahead}
    assert ("answer" in kept) == is_right
    assert ("search" in kept) == (is_right and likely)
    figures = log.speculation
    assert figures.num_begun == figures.num_kept + figures.num_dropped > 0
    assert bool(figures.num_dropped) == (not is_right)
    assert len(finder.asked) == int(likely or "baker" in question)
    assert len(asked_plainly.asked) == int("baker" in question)
