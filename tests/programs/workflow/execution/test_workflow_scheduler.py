"""A query's graph runs by what it waits for, drops what it no longer needs, and ends as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from workflow_apps import QUERY, advanced
from workflow_reference import ReferenceRun, digest

from quire.core.errors import EngineLost, InvalidArgument, PageLost
from quire.programs.workflow import App, Engine, Graph, Node, OptPass, Profile
from quire.programs.workflow.execution import scheduler as scheduler_module
from quire.programs.workflow.execution.answer_text import SaidText
from quire.programs.workflow.execution.recording import NO_RECORD
from quire.programs.workflow.execution.scheduler import PAUSES_S, GraphScheduler, PrimitiveRunner
from quire.programs.workflow.execution.watching import StepLog
from quire.programs.workflow.graphs.object_store import GraphState
from quire.programs.workflow.graphs.primitives import AT_ONCE, Op, Primitive
from quire.programs.workflow.graphs.values import ValueType
from quire.programs.workflow.runners.local import ToolRunner


class ReferenceRunner:
    """One runner for all engines, each primitive of which takes as many turns of the loop as it
    has characters in its name, so that primitives end in no simple order."""

    def __init__(self, graph: Graph) -> None:
        self.reference = ReferenceRun(graph.e_graph, graph.query, Random(0))
        self.num_running = self.most_running = self.num_closed = 0
        self.began: list[str] = []

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        self.began.append(primitive.id)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        for _ in primitive.id:
            await asyncio.sleep(0)
        self.num_running -= 1
        return self.reference.outputs(primitive, inputs)

    async def close(self) -> None:
        self.num_closed += 1


def of(graph: Graph) -> tuple[ReferenceRunner, dict[str, PrimitiveRunner]]:
    runner = ReferenceRunner(graph)
    return runner, dict.fromkeys(graph.app.engines, runner)


def clock() -> float:
    return 0.0


@pytest.mark.parametrize("synthesis", ["one_shot", "refine", "tree"])
@pytest.mark.parametrize("names", [[], ["prune", "stages", "prefill", "pipeline"]])
async def test_the_scheduler_gives_the_reference_answer(synthesis: str, names: list[str]) -> None:
    graph = Graph.optimize(advanced(synthesis=synthesis), QUERY, passes=OptPass(names))
    runner, runners = of(graph)
    log = StepLog()
    scheduler = GraphScheduler(graph.e_graph, graph.query, runners, clock, log)
    result = await scheduler.run()
    assert result == ReferenceRun(graph.p_graph, QUERY, Random(1)).results()
    assert len(log.steps) == len(graph.e_graph.primitives)
    assert scheduler.state.num_values == 1, "only the result is kept"
    assert runner.num_closed == len(runners)
    if synthesis == "refine":
        assert (runner.most_running > 1) == bool(names), "unoptimised primitives run one by one"


class AllKept(type(NO_RECORD)):  # type: ignore[misc]
    """Of each primitive an earlier attempt has kept the outputs."""

    def known(self, primitive: Primitive, state: GraphState) -> Mapping[str, Any]:
        kept = {ValueType.TEXT: "the kept answer"}
        return {name: kept.get(kind, [1.0]) for name, kind in primitive.outputs.items()}


@pytest.mark.parametrize("reads_text", [True, False])
async def test_who_reads_answers_is_told_the_kept_text_of_a_result(reads_text: bool) -> None:
    class Reader(StepLog):
        async def said(self, output: str, said: SaidText) -> None:
            told.append((output, said))

    told: list[tuple[str, SaidText]] = []
    app = App("app", [Engine("llm"), Engine("embedding")])
    writes = Node("llm", {"q": "text"}, {"a": "text"}, config={"prompt": "{q}"}, name="writes")
    embed = Node("embedding", {"t": "texts"}, {"v": "vectors"}, "batchable", name="embed")
    app.update_template([writes, embed])
    graph = Graph.optimize(app, {"q": "Who?", "t": ["x"]})
    runner, runners = of(graph)
    reader = Reader()
    reader.reads_text = reads_text
    run = GraphScheduler(graph.e_graph, graph.query, runners, clock, reader, record=AllKept()).run()
    assert await run == {"a": "the kept answer", "v": [1.0]}
    assert told == ([("a", SaidText("the kept answer"))] if reads_text else [])
    assert runner.began == []


async def test_what_is_ready_together_starts_with_the_deepest() -> None:
    graph = Graph.optimize(advanced(), QUERY)
    runner, runners = of(graph)
    await GraphScheduler(graph.e_graph, graph.query, runners, clock).run()
    depths = [graph.e_graph.primitives[one].depth for one in runner.began[:4]]
    assert depths == sorted(depths, reverse=True)
    assert runner.began[0] == "expand.prefill"


async def test_an_answer_is_asked_for_before_the_beginnings_of_other_prompts() -> None:
    """A whole prompt is computed with the answer's first token: until that is asked for, the engine
    would begin with what can wait."""
    graph = Graph.optimize(advanced(), QUERY)
    runner, runners = of(graph)
    await GraphScheduler(graph.e_graph, graph.query, runners, clock).run()
    asked = [one for one in runner.began if graph.e_graph.primitives[one].op not in AT_ONCE]
    assert asked[0] == "expand.decode.0"
    assert asked.index("answer.0.decode") < asked.index("answer.1.prefill.1")


async def test_a_failure_ends_the_query_and_closes_what_it_holds() -> None:
    graph = Graph.optimize(advanced(), QUERY)
    runner, runners = of(graph)

    class Lost:
        async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Any:
            raise EngineLost("the encoder was lost")

        async def close(self) -> None:
            runner.num_closed += 1

    runners["embedding"] = Lost()
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    log = StepLog()
    scheduler = GraphScheduler(graph.e_graph, graph.query, runners, clock, log, sleep)
    with pytest.raises(EngineLost, match=r"embed.*: was tried 5 times: the encoder was"):
        await scheduler.run()
    assert runner.num_closed == len(runners)
    assert "answer.0.decode" not in runner.began
    assert tuple(dict.fromkeys(pauses)) == PAUSES_S
    assert {one.engine for one in log.repeated} == {"embedding"}


@pytest.mark.parametrize(
    ("waited_s", "num_tries", "told", "ends_s"),
    [(15.0, 2, "2 times", 30.1), (80.0, 1, "once", 80.0), (1.0, 5, "5 times", 12.6)],
)
async def test_an_engine_that_hangs_is_waited_for_once_more_at_most(
    waited_s: float, num_tries: int, told: str, ends_s: float
) -> None:
    """Every further try would cost its user as much time as the first."""
    app = App("app", [Engine("search")])
    app.update_template([Node("search", {"q": "text"}, {"found": "texts"}, name="web")])
    graph = Graph.optimize(app, {"q": "x"})
    now_s, tries = 0.0, list[str]()

    class Hangs:
        async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Any:
            nonlocal now_s
            now_s += waited_s
            tries.append(primitive.id)
            raise EngineLost("no answer", waited_s=waited_s)

        async def close(self) -> None:
            """Nothing is held."""

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    scheduler = GraphScheduler(graph.e_graph, graph.query, {"search": Hangs()}, clock, sleep=sleep)
    with pytest.raises(EngineLost, match=f"web: was tried {told}: no answer"):
        await scheduler.run()
    assert len(tries) == num_tries
    assert now_s == pytest.approx(ends_s)


async def test_an_engine_that_frees_nothing_does_not_keep_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler_module, "CLOSE_S", 0.01)
    graph = Graph.optimize(advanced(), QUERY)
    runner, runners = of(graph)
    is_over = asyncio.Event()

    class Hangs:
        async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Any:
            return await runner.run(primitive, inputs)

        async def close(self) -> None:
            await is_over.wait()

    runners[next(iter(runners))] = Hangs()
    async with asyncio.timeout(10):
        await GraphScheduler(graph.e_graph, graph.query, runners, clock).run()
    assert runner.num_closed == len(runners) - 1, "those behind it are closed all the same"


async def test_a_primitive_whose_engine_was_lost_is_carried_out_again_from_its_inputs() -> None:
    graph = Graph.optimize(advanced(), QUERY)
    runner, runners = of(graph)
    seen: dict[str, list[Any]] = {}

    class OnceLost:
        async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Any:
            seen.setdefault(primitive.id, []).append(dict(inputs))
            if len(seen[primitive.id]) == 1:
                raise PageLost("gone")
            return await runner.run(primitive, inputs)

        async def close(self) -> None:
            await runner.close()

    async def sleep(seconds: float) -> None:
        assert seconds == PAUSES_S[0]

    log = StepLog()
    lossy: dict[str, PrimitiveRunner] = dict.fromkeys(runners, OnceLost())
    scheduler = GraphScheduler(graph.e_graph, graph.query, lossy, clock, log, sleep)
    assert await scheduler.run() == ReferenceRun(graph.p_graph, QUERY, Random(1)).results()
    assert all(first == again for first, again in seen.values())
    assert {one.id for one in log.repeated} == set(seen)
    assert scheduler.state.num_values == 1


async def test_a_tool_is_not_carried_out_again() -> None:
    """It is not known whether it took effect."""
    calls: list[str] = []

    def lost(q: str) -> str:
        calls.append(q)
        raise EngineLost("the other side is gone")

    app = App("app", [Engine("tool", config={"functions": {"ask": lost}})])
    node = Node("tool", {"q": "text"}, {"a": "text"}, config={"function": "ask"}, name="do")
    app.update_template([node])
    graph = Graph.optimize(app, {"q": "x"})
    runners: dict[str, PrimitiveRunner] = {"tool": ToolRunner(app.engines["tool"].functions)}
    with pytest.raises(EngineLost, match="do: the other side is gone"):
        await GraphScheduler(graph.e_graph, graph.query, runners, clock).run()
    assert calls == ["x"]


async def test_a_cancelled_query_closes_what_it_holds() -> None:
    graph = Graph.optimize(advanced(), QUERY)
    runner, runners = of(graph)
    task = asyncio.create_task(GraphScheduler(graph.e_graph, graph.query, runners, clock).run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert runner.began
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert runner.num_closed == len(runners)


def test_values_are_dropped_behind_their_last_user() -> None:
    graph = Graph.optimize(advanced(), QUERY).e_graph
    state = GraphState(graph, QUERY)
    reference = ReferenceRun(graph, QUERY, Random(0))
    ready = state.start()
    assert {one.id for one in ready} >= {"chunk", "expand.prefill", "answer.0.prefill.0"}
    while ready:
        one = ready.pop()
        ready += state.finish(one.id, reference.outputs(one, state.inputs_of(one)))
        if one.op is Op.CHOOSING:
            assert state.num_values <= 1 + 6, "chunks and vectors are gone"
    assert state.num_left == 0
    assert state.num_values == 1
    assert len(state.results()["answer"]) == 8


def branching(function: Any) -> App:
    app = App("branch", [Engine("tool", config={"functions": {"f": function}}, profile=Profile(2))])
    judge = Node(
        "condition", {"text": "text"}, {"yes": "boolean"}, None, {"equals": "Yes"}, name="judge"
    )
    work = Node(
        "tool", {"items": "texts"}, {"worked": "texts"}, "batchable", {"function": "f"},
        name="work", when="yes",
    )  # fmt: skip
    app.update_template([judge, work])
    return app


@pytest.mark.parametrize(("text", "worked"), [("yes.", ["A", "B", "C"]), ("no", [])])
async def test_a_branch_that_is_not_taken_does_nothing(text: str, worked: list[str]) -> None:
    def upper(items: list[str]) -> list[str]:
        assert text == "yes.", "the branch is not taken"
        return [item.upper() for item in items]

    graph = Graph.optimize(branching(upper), {"text": text, "items": ["a", "b", "c"]})
    assert "work.1" in graph.e_graph.primitives
    runners: dict[str, PrimitiveRunner] = {"tool": ToolRunner({"f": upper})}
    result = await GraphScheduler(graph.e_graph, graph.query, runners, clock).run()
    assert result == {"worked": worked}


async def test_a_tool_that_does_not_return_what_it_promised_is_named() -> None:
    query = {"text": "yes", "items": ["a", "b", "c"]}
    for wrong, message in (
        (lambda items: "text", r"work: the function 'f' returned 'text' \(str\), not texts"),
        (lambda items: [*items, "more"], "work: gave 3 elements for 2"),
    ):
        graph = Graph.optimize(branching(wrong), query)
        runners: dict[str, PrimitiveRunner] = {"tool": ToolRunner({"f": wrong})}
        with pytest.raises(InvalidArgument, match=message):
            await GraphScheduler(graph.e_graph, graph.query, runners, clock).run()


def test_the_reference_is_deterministic() -> None:
    assert digest("a", 1) == digest("a", 1) != digest("a", 2)
