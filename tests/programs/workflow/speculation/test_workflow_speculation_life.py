"""Runs ahead on a node: what they cost, what they leave, and what else of a query stays right."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from programs_node import level
from replay_node import threads_at_once
from workflow_apps import SCHEMA

from quire.core.calls import SPARE_PRIORITY, CreateQueue, SetQueuePriority
from quire.core.errors import (
    CapacityError,
    DeadlineExceeded,
    NeverWithinQuota,
    ProgramCancelled,
    ProgramFailed,
)
from quire.core.events import Called, Event
from quire.core.ids import EngineId
from quire.programs.search import SearchResult
from quire.programs.workflow import App, Engine, Graph, Growth, Node, OptPass, StepLog, run_query
from quire.programs.workflow.execution.answer_text import SaidText
from quire.programs.workflow.graphs.object_store import GraphState
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.query import Query
from quire.programs.workflow.speculation import (
    Experience,
    Run,
    SpeculationFigures,
    SpeculativeRuns,
)
from quire.programs.workflow.speculation.ahead import ClaimedRuns, Review
from quire.programs.workflow.speculation.speculator import Speculator
from quire.testing import FakeEngine, FakeTokenizer, LocalNode, ScriptedModel, fake_pool
from quire.testing.local_node import scripted_node

SPECULATING = OptPass().speculating()
WORDS = "one two three four"


class Gate:
    """A tool that decides when the test lets it."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.opened = asyncio.Event()

    async def decide(self, question: str) -> str:
        await self.opened.wait()
        return self._kind


def deciding(likely: bool | None) -> list[Node]:
    """A slow tool, and whether it said yes."""
    decide = Node(
        "tool", {"question": "text"}, {"kind": "text"}, config={"function": "decide"}, name="decide"
    )
    needs = Node(
        "condition", {"kind": "text"}, {"wanted": "boolean"},
        config={"equals": "yes", "likely": likely}, name="needs",
    )  # fmt: skip
    decide >> needs
    return [decide, needs]


def gated(gate: Gate, likely: bool | None = True, max_tokens: int = 64) -> App:
    """A model answers if a slow tool says so."""
    app = App(
        "gated", [Engine("llm"), Engine("tool", config={"functions": {"decide": gate.decide}})]
    )
    decide, needs = deciding(likely)
    answer = Node(
        "llm", {"question": "text"}, {"answer": "text"},
        config={"prompt": "{question}", "max_tokens": max_tokens}, name="answer", when="wanted",
    )  # fmt: skip
    needs >> answer
    app.update_template([decide, needs, answer])
    return app


def answering(prompt: str) -> str:
    return f"{WORDS}<|end|>"


@pytest.fixture(autouse=True)
def _graphs_are_built_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    threads_at_once(monkeypatch)


class Texts(StepLog):
    reads_text = True

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[SaidText] = []

    async def said(self, output: str, said: SaidText) -> None:
        self.texts.append(said)


async def until_idle(local: LocalNode) -> None:
    """Everything that can run has run; the gate is still shut."""
    for _ in range(3):
        await asyncio.sleep(0)
        await local.idle()


def launched(local: LocalNode, app: App, log: StepLog, question: str = "Why?") -> Any:
    async def main(api: Any) -> Any:
        return await run_query(api, app, {"question": question}, passes=SPECULATING, watcher=log)

    return local.launch(main)


@pytest.mark.parametrize("kind", ["yes", "no"])
async def test_an_answer_that_was_written_ahead_is_told_once_it_is_needed(kind: str) -> None:
    gate, log = Gate(kind), Texts()
    async with scripted_node(answering, page_size=4) as local:
        running = launched(local, gated(gate), log)
        await until_idle(local)
        (row,) = local.controller.processes()
        assert row.num_generated_tokens > len(WORDS.split()), "it was written before"
        assert not log.texts, "nobody knows yet whether it is wanted"
        gate.opened.set()
        result = await running.result()
        assert (await level(local))["held"] == 0
        assert local.speculation.statistics() == log.speculation
    said = "".join(one.text for one in log.texts)
    assert not any(one.begins_again for one in log.texts)
    if kind == "yes":
        assert (result, said) == ({"answer": WORDS}, WORDS)
        assert log.speculation == SpeculationFigures(2, 2, 0, 0)
    else:
        assert (result, said) == ({"answer": ""}, "")
        assert log.speculation == SpeculationFigures(2, 0, 2, row.num_generated_tokens)


async def test_what_is_kept_gets_the_priority_of_the_others() -> None:
    calls: list[Event] = []
    gate = Gate("yes")
    async with scripted_node(answering, page_size=4) as local:
        handle = local.controller.handle

        def noted(event: Event) -> Any:
            calls.append(event)
            return handle(event)

        local.controller.handle = noted  # type: ignore[method-assign]
        running = launched(local, gated(gate), StepLog())
        await until_idle(local)
        made = [c.call for c in calls if isinstance(c, Called) and isinstance(c.call, CreateQueue)]
        assert [one.priority for one in made] == [SPARE_PRIORITY]
        gate.opened.set()
        await running.result()
    told = [c.call for c in calls if isinstance(c, Called) and isinstance(c.call, SetQueuePriority)]
    assert [(one.queue, one.priority) for one in told] == [(made[0].queue, 0)]


@pytest.mark.parametrize("num_turns", range(12))
async def test_a_bounded_query_whose_answer_has_begun_ahead_is_answered(num_turns: int) -> None:
    """Its answer is asked for before what runs ahead has begun, or has been refused."""
    gate = Gate("yes")
    asked = Query(gated(gate), {"question": "Why?"}, max_generated_tokens=100, speculate=True)
    asked.prepare()
    async with scripted_node(answering, page_size=4) as local:
        running = local.launch(asked.program())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        gate.opened.set()
        assert await running.result() == {"answer": WORDS}


def listing(gate: Gate) -> App:
    """A model writes a list if a slow tool says so; another tool takes each element at once."""

    async def shouted(items: list[str]) -> list[str]:
        return [item.upper() for item in items]

    functions = {"decide": gate.decide, "shouted": shouted}
    plan = Node(
        "llm", {"question": "text"}, {"items": "texts"}, "splittable",
        {"prompt": "{question}", "schema": SCHEMA}, name="plan", when="wanted",
    )  # fmt: skip
    shout = Node(
        "tool", {"items": "texts"}, {"answer": "texts"}, "batchable", {"function": "shouted"},
        name="shout", when="wanted",
    )  # fmt: skip
    made = App("listing", [Engine("llm"), Engine("tool", config={"functions": functions})])
    made.update_template([*deciding(likely=True), plan, shout])
    return made


@pytest.mark.parametrize("num_turns", [0, 2, 3, 10, 100])
async def test_a_bounded_query_whose_list_has_begun_ahead_is_answered(num_turns: int) -> None:
    gate = Gate("yes")
    asked = Query(listing(gate), {"question": "Why?"}, max_generated_tokens=200, speculate=True)
    asked.prepare()
    async with scripted_node(lambda _: '["a","b","c"]<|end|>', page_size=4) as local:
        running = local.launch(asked.program())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        gate.opened.set()
        assert await running.result() == {"answer": ["A", "B", "C"]}


class Decoding:
    """The choice of one decode that runs ahead and is claimed."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._left = [run]
        self.outputs: list[Any] = []

    def review(self) -> Review:
        begin, self._left = self._left, []
        return Review(begin, [])

    def claim(self, primitive: Primitive) -> ClaimedRuns:
        return ClaimedRuns(self._run, None, [])

    def ended(self, run: Run, outputs: Any) -> None:
        self.outputs.append(outputs)


class AheadRuns:
    """A runner that notes what runs ahead."""

    def __init__(self) -> None:
        self.begun: list[Run] = []

    async def run_ahead(self, run: Run) -> dict[str, Any]:
        self.begun.append(run)
        return {"out": WORDS}

    def keep(self, run: Run) -> None: ...

    def drop(self, run: Run) -> int:
        return 0

    async def run(self, primitive: Primitive, inputs: Any) -> dict[str, Any]:
        raise AssertionError

    async def close(self) -> None: ...


@pytest.mark.parametrize("has_begun", [False, True])
async def test_an_answer_that_is_claimed_before_it_has_begun_ahead_is_not_begun_twice(
    has_begun: bool,
) -> None:
    graph = Graph.optimize(gated(Gate("yes")), {"question": "Why?"}, passes=SPECULATING)
    primitive = next(p for p in graph.e_graph.primitives.values() if p.op is Op.DECODING)
    runner, chosen = AheadRuns(), Decoding(Run(primitive, {}))
    speculator = Speculator(
        GraphState(graph.e_graph, graph.query), Experience(), {"llm": runner}, lambda one: True
    )
    speculator._ahead = cast(SpeculativeRuns, chosen)
    async with asyncio.TaskGroup() as group:
        speculator.review(group)
        if has_begun:
            await asyncio.sleep(0)
        assert await speculator.claimed(primitive) is None, "the primitive tells its answer itself"
    assert len(runner.begun) == has_begun
    assert chosen.outputs == [{"out": WORDS} if has_begun else None]


async def test_a_budget_of_tokens_is_used_by_what_is_needed_alone() -> None:
    for kind, budget in (("yes", 100), ("no", 1)):
        gate, log = Gate(kind), StepLog()
        asked = Query(
            gated(gate), {"question": "Why?"}, max_generated_tokens=budget, log=log, speculate=True
        )
        asked.prepare()
        async with scripted_node(answering, page_size=4) as local:
            running = local.launch(asked.program())
            await until_idle(local)
            (row,) = local.controller.processes()
            assert row.num_generated_tokens == 0, "a bounded query decodes nothing ahead"
            gate.opened.set()
            assert await running.result() == {"answer": WORDS if kind == "yes" else ""}
        assert log.speculation.num_begun == 2
        assert log.speculation.num_dropped_tokens == 0
    gate = Gate("yes")
    gate.opened.set()
    asked = Query(gated(gate), {"question": "Why?"}, max_generated_tokens=2, speculate=True)
    asked.prepare()
    async with scripted_node(answering, page_size=4) as local:
        with pytest.raises(ProgramFailed, match="more than the 2 generated tokens"):
            await local.run(asked.program())
    assert isinstance(asked.error, NeverWithinQuota)


@pytest.mark.parametrize("how", ["deadline", "cancel"])
async def test_a_query_that_is_cut_off_leaves_nothing_of_what_ran_ahead(how: str) -> None:
    gate = Gate("yes")
    deadline_s = 0.05 if how == "deadline" else None
    asked = Query(gated(gate), {"question": "Why?"}, deadline_s=deadline_s, speculate=True)
    asked.prepare()
    async with scripted_node(answering, page_size=4) as local:
        running = local.launch(asked.program())
        await until_idle(local)
        if how == "cancel":
            running.cancel("by the test")
            with pytest.raises(ProgramCancelled):
                await running.result()
        else:
            with pytest.raises(ProgramFailed):
                await running.result()
            assert isinstance(asked.error, DeadlineExceeded)
        found = await level(local)
        assert (found["held"], found["pending"], found["sequences"]) == (0, 0, 0)


async def test_an_engine_that_is_lost_loses_what_ran_ahead_and_no_answer() -> None:
    gate, log = Gate("yes"), Texts()
    async with scripted_node(answering, page_size=4) as local:
        running = launched(local, gated(gate), log)
        await until_idle(local)
        (number,) = local.harness.engines
        local.harness.lose_engine(number)
        script = ScriptedModel(answering, FakeTokenizer())
        again = FakeEngine(fake_pool(page_size=4, num_blocks=1024), script=script)
        local.harness.start_engine(EngineId(number), again)
        gate.opened.set()
        assert await running.result() == {"answer": WORDS}
        assert (await level(local))["held"] == 0


async def test_equal_answers_neither_wait_for_a_spare_one_nor_make_it_wait() -> None:
    shut, open_ = Gate("yes"), Gate("yes")
    open_.opened.set()
    script = ScriptedModel(answering, FakeTokenizer())
    engine = FakeEngine(fake_pool(page_size=4, num_blocks=1024), script=script)
    async with LocalNode({EngineId("fake"): engine}, shared_results_bytes=10_000) as local:
        log, other = StepLog(), StepLog()
        running = launched(local, gated(shut), log)
        await until_idle(local)
        assert await launched(local, gated(open_), other).result() == {"answer": WORDS}
        assert [step.shared for step in other.steps if step.shared] == [], "nothing is shared yet"
        statistics = local.shared_results.statistics()
        assert (statistics.num_waited, statistics.num_computed) == (0, 1)
        shut.opened.set()
        assert await running.result() == {"answer": WORDS}
        third = StepLog()
        assert await launched(local, gated(open_), third).result() == {"answer": WORDS}
        assert "kept" in {step.shared for step in third.steps}


async def test_what_a_condition_mostly_is_is_learnt() -> None:
    gate = Gate("no")
    gate.opened.set()
    app = gated(gate, likely=None)
    async with scripted_node(answering, page_size=4) as local:
        begun = []
        for _ in range(6):
            log = StepLog()
            await launched(local, app, log).result()
            begun.append(log.speculation.num_begun)
    assert begun[0] > 0, "nobody knows yet, so that it is supposed to be both"
    assert begun[-1] == 0, "it was never true"
    assert app.experience.chance("needs") < 0.2


async def test_a_condition_in_a_growth_is_supposed_too() -> None:
    gate = Gate("yes")

    def grow(question: str) -> Growth:
        return Growth([*gated(gate).nodes])

    whole = gated(gate)
    app = App(
        "grown", [*whole.engines.values(), Engine("growth", config={"functions": {"grow": grow}})]
    )
    node = Node(
        "growth", {"question": "text"}, {"answer": "text"}, config={"function": "grow"}, name="g"
    )
    app.update_template([node])
    async with scripted_node(answering, page_size=4) as local:
        log = StepLog()
        running = launched(local, app, log)
        while not any(row.num_generated_tokens for row in local.controller.processes()):
            await asyncio.sleep(0.001)  # the growth's graph is built in a thread
            await until_idle(local)
        gate.opened.set()
        assert await running.result() == {"answer": WORDS}
    assert log.speculation.num_kept == 2


async def test_a_search_that_finds_no_free_turn_runs_when_it_is_needed() -> None:
    class Busy:
        name, at_once = "busy", 1

        def __init__(self) -> None:
            self.asked = 0

        async def search(self, query: str, top_k: int) -> list[SearchResult]:
            self.asked += 1
            if self.asked == 1:
                raise CapacityError("nothing is to spare")
            return [SearchResult("t", "a", "found", 1.0)]

        async def close(self) -> None:
            """Nothing is held."""

    gate, engine = Gate("yes"), Busy()
    decide, needs, _ = gated(gate).nodes
    needs.before.clear()
    search = Node("search", {"question": "text"}, {"found": "texts"}, name="s", when="wanted")
    needs >> search
    app = App("searching", [Engine("search"), *gated(gate).engines.values()])
    app.update_template([decide, needs, search])
    async with scripted_node(answering, page_size=4, search=engine) as local:
        log = StepLog()
        running = launched(local, app, log)
        await until_idle(local)
        gate.opened.set()
        assert await running.result() == {"found": ["found"]}
    assert engine.asked == 2
    assert log.speculation == SpeculationFigures(1, 0, 1, 0)
