"""A ranking scores what its query stores before its search finds any of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest
from workflow_apps import QUERY, advanced
from workflow_lines import with_num_lines
from workflow_reference import ReferenceRun, digest

from quire.core.calls import SPARE_PRIORITY
from quire.programs.api import Api
from quire.programs.workflow import Graph, OptPass, StepLog
from quire.programs.workflow.execution.scheduler import GraphScheduler
from quire.programs.workflow.graphs.object_store import GraphState
from quire.programs.workflow.graphs.primitives import Guess, Op, Primitive
from quire.programs.workflow.passes import STANDARD
from quire.programs.workflow.runners import encoding
from quire.programs.workflow.runners.encoding import NUM_AHEAD, EncoderRunner
from quire.programs.workflow.speculation import Experience, Run, SpeculativeRuns
from quire.programs.workflow.speculation.early import EarlyScores

ALL = [*(name for name, _ in STANDARD), "speculate"]


def speculating() -> Graph:
    return Graph.optimize(advanced(), QUERY, passes=OptPass(ALL))


class Held:
    """Runs everything at once but the searches, which wait until ``found``."""

    def __init__(self, graph: Graph) -> None:
        self._reference = ReferenceRun(graph.e_graph, graph.query, Random(0))
        self.found = asyncio.Event()
        self.ran: list[Primitive] = []

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        self.ran.append(primitive)
        if primitive.op is Op.SEARCHING:
            await self.found.wait()
        return self._reference.outputs(primitive, inputs)

    async def close(self) -> None:
        """Nothing is held."""


async def answered(graph: Graph, experience: Experience | None) -> tuple[Any, Held, StepLog]:
    runner, log = Held(graph), StepLog()
    runners = dict.fromkeys(graph.app.engines, runner)
    running = asyncio.create_task(
        GraphScheduler(
            graph.e_graph, graph.query, runners, lambda: 0.0, log, experience=experience
        ).run()
    )
    for _ in range(200):
        await asyncio.sleep(0)
    runner.found.set()
    return await running, runner, log


async def test_what_is_stored_is_scored_and_read_before_it_is_found() -> None:
    graph = speculating()
    wanted, _, _ = await answered(graph, None)
    experience = Experience()
    result, runner, log = await answered(graph, experience)
    assert result == wanted
    (early,) = (one for one in runner.ran if one.id == "rank.early")
    assert early.priority == SPARE_PRIORITY
    places = {one.id: place for place, one in enumerate(runner.ran)}
    assert places["rank.early"] < places["search.0"]
    answers = [step for step in log.steps if step.primitive.node == "answer"]
    decodes = [step for step in answers if step.primitive.op is Op.DECODING]
    assert all(step.ahead for step in decodes), "the best of all are among those that are found"
    num_ahead = sum(step.ahead for step in log.steps)
    assert num_ahead == log.speculation.num_kept, "a ranking that found scores began ahead"
    assert experience.chance("rank.scored") > 0.5
    assert experience.chance("rank.early") > 0.5


async def test_an_engine_that_cannot_score_ahead_changes_nothing() -> None:
    class Failing(Held):
        async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            if primitive.id == "rank.early":
                raise RuntimeError("no")
            return await super().run(primitive, inputs)

    graph = speculating()
    wanted, _, _ = await answered(graph, None)
    runner, log = Failing(graph), StepLog()
    runner.found.set()
    runners = dict.fromkeys(graph.app.engines, runner)
    scheduler = GraphScheduler(
        graph.e_graph, graph.query, runners, lambda: 0.0, log, experience=Experience()
    )
    assert await scheduler.run() == wanted
    assert log.speculation.num_begun == log.speculation.num_kept + log.speculation.num_dropped


def started(experience: Experience, top_k: int = 6) -> list[Run]:
    """What begins ahead when the document has been chunked."""
    config = {"search": {"top_k": top_k}}
    graph = Graph.optimize(advanced(), QUERY, config, passes=OptPass(ALL))
    state = GraphState(graph.e_graph, graph.query)
    reference = ReferenceRun(graph.e_graph, graph.query, Random(0))
    ahead = SpeculativeRuns(state, experience)
    state.start()
    chunk = graph.e_graph.primitives["chunk"]
    state.finish("chunk", reference.outputs(chunk, state.inputs_of(chunk)))
    return ahead.review().begin


def test_what_is_rarely_found_is_not_scored() -> None:
    (run,) = started(Experience())
    assert run.primitive.node == "rank"
    assert len(run.inputs["texts"]) == 20, "every chunk, once"
    bad = Experience()
    for _ in range(8):
        bad.note("rank.early", 0.0)
    assert not started(bad)
    assert not started(Experience(), top_k=1), "three of twenty will be found"


def test_only_what_a_search_of_the_query_finds_is_among_what_it_stores() -> None:
    graph = speculating()
    marked = [one.id for one in graph.e_graph.primitives.values() if one.guess is Guess.STORED]
    assert marked == ["rank.score.0", "rank.score.1", "rank.score.2"]
    told = [note for note in graph.notes if note.rule == "speculate"]
    note = next(note for note in told if note.where.startswith("rank.score"))
    assert note.text == "scores what is stored before it is found, in spare time"


class Scores:
    """``Api`` of a node that scores texts."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    async def rerank(self, query: str, documents: list[str], **options: Any) -> list[float]:
        self.asked.append((len(documents), options["priority"]))
        await asyncio.sleep(0)
        return [float(int(digest(query, one), 16)) for one in documents]


@pytest.mark.parametrize("num_turns", [0, 1, 2, 9])
async def test_who_ranks_asks_for_what_was_not_scored(num_turns: int) -> None:
    graph, api = speculating(), Scores()
    runner = EncoderRunner(cast(Api, api), None, {})
    texts = [f"text {number}" for number in range(3 * NUM_AHEAD)]
    primitive = graph.e_graph.primitives["rank.score.0"]
    run = Run(primitive, {"text": "Who?", "texts": texts})
    task = asyncio.create_task(runner.run_ahead(run))
    for _ in range(num_turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    num_scored = min(len(texts), NUM_AHEAD * max(0, num_turns - 1))
    api.asked.clear()
    found = await runner.run(primitive, {"text": "Who?", "texts": [*texts, texts[0]]})
    assert found["out"] == [float(int(digest("Who?", one), 16)) for one in [*texts, texts[0]]]
    assert sum(num for num, _ in api.asked) == len(texts) - num_scored
    api.asked.clear()
    again = await runner.run(primitive, {"text": "Who?", "texts": [texts[3], "another"]})
    assert again["out"][0] == found["out"][3]
    assert [num for num, _ in api.asked] == [1], "another search has found one more"
    api.asked.clear()
    cut = replace(primitive, config={**primitive.config, "truncate": True})
    await runner.run(cut, {"text": "Who?", "texts": texts[:2]})
    assert [num for num, _ in api.asked] == [2], "the score of a text that is cut is another"


async def test_a_query_keeps_its_latest_scores_and_no_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoding, "MAX_SCORES", 5)
    graph, api = speculating(), Scores()
    runner = EncoderRunner(cast(Api, api), None, {})
    primitive = graph.e_graph.primitives["rank.score.0"]
    texts = [f"text {number}" for number in range(8)]
    found = await runner.run(primitive, {"text": "Who?", "texts": texts})
    assert found["out"] == [float(int(digest("Who?", one), 16)) for one in texts]
    assert {len(key) for key in runner._scores} == {16}
    api.asked.clear()
    await runner.run(primitive, {"text": "Who?", "texts": texts[3:]})
    assert api.asked == []
    await runner.run(primitive, {"text": "Who?", "texts": texts[:3]})
    assert [num for num, _ in api.asked] == [3], "the first were dropped"


def test_to_choose_what_runs_ahead_costs_no_more_if_more_is_stored() -> None:
    num_lines: list[int] = []
    for num_chunks in (20, 200):
        text = " ".join(f"w{number}" for number in range(20 * num_chunks))
        query = {"question": "Who?", "documents": [{"name": "a", "text": text}]}
        graph = Graph.optimize(advanced(), query, passes=OptPass(ALL))
        state = GraphState(graph.e_graph, graph.query)
        ahead = SpeculativeRuns(state, Experience())
        state.start()
        ahead.review()
        num_lines.append(with_num_lines(ahead.review)[1])
    assert num_lines[0] == num_lines[1]


async def test_a_ranking_that_has_grown_is_not_chosen_by_the_scores_of_another() -> None:
    graph = speculating()
    whole = graph.e_graph
    state = GraphState(whole, graph.query)
    early = EarlyScores(state, Experience())
    marked = [one for one in whole.primitives.values() if one.guess]
    state.start()
    reference = ReferenceRun(whole, graph.query, Random(0))
    chunk = whole.primitives["chunk"]
    state.finish("chunk", reference.outputs(chunk, state.inputs_of(chunk)))
    (run,) = early.begin(marked)
    run.outputs = {"out": [0.0] * len(run.inputs["texts"])}
    choosing = whole.primitives["rank"]
    assert early.best(choosing) == run.inputs["texts"][:3]
    assert early.best(replace(choosing, id="loop/rank")) is None, "it asks another question"
    assert not early.end(marked)
    assert early.end([]) == [run], "all rankings have ended without it"
    assert early.best(choosing) is None
