"""Graphs that grow while they run: a grown graph gives the answer of the same graph written out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workflow_growths import QUERY, Grown, Reference, counted, run, scheduler_of
from workflow_random import NAMES, RandomApp
from workflow_reference import ReferenceRun, digest, elements

from quire.core.errors import InvalidArgument, ProgramError
from quire.programs.workflow import App, Engine, Graph, GraphCache, Growth, Node, OptPass, StepLog
from quire.programs.workflow.execution import scheduler as scheduler_module
from quire.programs.workflow.execution.growing import TemplateGrower
from quire.programs.workflow.execution.recording import NO_RECORD
from quire.programs.workflow.execution.scheduler import GraphScheduler
from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.growing_graph import MAX_GROWTH_CHARS, GrowingGraph
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.runners.local import ToolRunner

# -- the same graph, written out and grown ---------------------------------------------------------


@settings(max_examples=30)
@given(st.data())
def test_a_grown_graph_gives_the_answer_of_the_same_graph_written_out(
    data: st.DataObject,
) -> None:
    drawn = RandomApp(data.draw, grows=data.draw(st.booleans()))
    written = drawn.app(data.draw(st.integers(1, 4)))
    query = {name: QUERY[name] for name in written.query_inputs}
    seed = data.draw(st.integers(0, 1 << 30))
    plain = Graph.optimize(written, query, passes=OptPass([]))
    wanted = ReferenceRun(plain.p_graph, plain.query, Random(seed), drawn.become).results()

    grown = Grown(data.draw)
    nodes = grown.nodes(list(drawn.nodes), set(written.results))
    others = [one for one in written.engines.values() if one.kind != "growth"]
    functions = {**drawn.functions, **grown.functions}
    engines = [*others, Engine("growth", config={"functions": functions})]
    app = App("grown", engines)
    app.update_template(nodes)
    for names in (data.draw(st.sets(st.sampled_from(NAMES))), NAMES):
        graph = Graph.optimize(app, query, passes=OptPass(names), cache=GraphCache())
        for repeated in range(2):  # the second time from the cache
            result, scheduler = run(graph, seed + repeated)
            assert result == wanted
            assert scheduler.state.num_values <= len(wanted), "only results are kept"
            numbers = [one.number for one in scheduler.state.graph.primitives.values()]
            assert len(set(numbers)) == len(numbers)
            check_whole(scheduler.state.graph)


# -- loops -----------------------------------------------------------------------------------------


async def answered(app: App, query: Mapping[str, Any], log: StepLog | None = None) -> Any:
    graph = Graph.optimize(app, query)
    tools = ToolRunner(app.engines["tool"].functions)
    return await scheduler_of(graph, runner=tools, log=log).run()


async def test_a_loop_runs_until_its_function_returns_a_value() -> None:
    log = StepLog()
    assert await answered(counted(4), {"text": "x"}, log) == {"answer": "xxxx"}
    assert log.graph is not None
    assert [step.primitive.id for step in log.steps] == [
        "loop", "loop/work", "loop/loop", "loop/loop/work", "loop/loop/loop",
        "loop/loop/loop/work", "loop/loop/loop/loop",
    ]  # fmt: skip


async def test_the_id_of_a_primitive_does_not_get_longer_the_deeper_it_lies() -> None:
    log = StepLog()
    assert await answered(counted(301, max_rounds=300), {"text": "x"}, log) == {"answer": "x" * 301}
    ids = [step.primitive.id for step in log.steps]
    assert len(set(ids)) == 601
    assert max(map(len, ids)) < 2 * MAX_GROWTH_CHARS
    _, number, *names = ids[-1].split("/")
    assert int(number.partition(".")[0]) + len(names) - 1 == 300, "growths around it"


async def test_a_loop_without_an_end_is_ended_with_the_bound_by_name() -> None:
    with pytest.raises(InvalidArgument, match=r"loop: has grown 5 rounds .* raise max_rounds"):
        await answered(counted(100, max_rounds=5), {"text": "x"})
    with pytest.raises(InvalidArgument, match=r"loop: has grown 16 rounds"):
        await answered(counted(100), {"text": "x"})
    assert await answered(counted(17), {"text": "x"}) == {"answer": "x" * 17}
    assert await answered(counted(2, max_rounds=1), {"text": "x"}) == {"answer": "xx"}


async def test_the_primitives_of_a_query_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "MAX_GROWN_PRIMITIVES", 6)
    with pytest.raises(InvalidArgument, match=r"loop: with its growth the query has 7 primitives"):
        await answered(counted(100), {"text": "x"})


# -- depths, siblings, maps ------------------------------------------------------------------------


def two_branches(functions: Mapping[str, Any], step: Any) -> App:
    """``slow`` and a growth side by side, and a tool that takes both."""
    app = App(
        "branches",
        [
            Engine("tool", config={"functions": functions}),
            Engine("growth", config={"functions": {"step": step}}),
        ],
    )
    slow = Node("tool", {"q": "text"}, {"a": "text"}, None, {"function": "slow"}, name="slow")
    grow = Node("growth", {"q": "text"}, {"b": "text"}, None, {"function": "step"}, name="grow")
    join = Node(
        "tool", {"a": "text", "b": "text"}, {"c": "text"}, None, {"function": "join"}, name="join"
    )
    app.update_template([slow, grow, join])
    return app


async def test_no_branch_waits_for_a_slow_sibling() -> None:
    let_go, reached = asyncio.Event(), asyncio.Event()

    async def slow(q: str) -> str:
        await let_go.wait()
        return "slow"

    async def quick(q: str) -> str:
        return q + "!"

    async def last(r: str) -> str:
        reached.set()
        return r

    def step(q: str) -> Growth:
        first = Node("tool", {"q": "text"}, {"r": "text"}, None, {"function": "quick"}, name="one")
        then = Node("tool", {"r": "text"}, {"b": "text"}, None, {"function": "last"}, name="two")
        return Growth([first, then])

    functions: dict[str, Any] = {
        "slow": slow,
        "quick": quick,
        "last": last,
        "join": lambda a, b: f"{a} {b}",
    }
    app = two_branches(functions, step)
    graph = Graph.optimize(app, {"q": "x"})
    scheduler = scheduler_of(graph, runner=ToolRunner(functions))
    running = asyncio.create_task(scheduler.run())
    await reached.wait()  # three steps behind the growth, while its sibling has not ended
    assert not let_go.is_set()
    let_go.set()
    assert await running == {"c": "slow x!"}
    depths = {one: p.depth for one, p in scheduler.state.graph.primitives.items() if one != "grow"}
    assert depths == {"slow": 1, "join": 0, "grow/one": 2, "grow/two": 1}


class SlowRecord(type(NO_RECORD)):  # type: ignore[misc]
    """Each growth waits until ``num`` of them are to be kept."""

    def __init__(self, num: int) -> None:
        self._num, self._all_are_there = num, asyncio.Event()

    async def grew(self, primitive: Primitive, growth: Growth, num_primitives: int) -> None:
        self._num -= 1
        if not self._num:
            self._all_are_there.set()
        await self._all_are_there.wait()


async def test_growths_that_are_kept_side_by_side_are_both_in_the_graph() -> None:
    def step_of(name: str) -> Any:
        return lambda q: Growth([work(outputs={name: "text"})])

    functions = {"do": lambda q: q + "!", "join": lambda a, b: f"{a} {b}"}
    app = App(
        "pair",
        [
            Engine("tool", config={"functions": functions}),
            Engine("growth", config={"functions": {name: step_of(name) for name in "ab"}}),
        ],
    )
    config = {"function": "join"}
    join = Node("tool", {"a": "text", "b": "text"}, {"c": "text"}, None, config, name="join")
    pair = [
        Node(
            "growth", {"q": "text"}, {name: "text"}, config={"function": name}, name=f"grow_{name}"
        )
        for name in "ab"
    ]
    app.update_template([*pair, join])
    graph = Graph.optimize(app, {"q": "x"})
    runners: dict[str, Any] = {"tool": ToolRunner(functions)}
    grower = TemplateGrower(graph.app, graph.config, graph.passes, graph.cache)
    scheduler = GraphScheduler(
        graph.e_graph, graph.query, runners, lambda: 0.0, grower=grower, record=SlowRecord(2)
    )
    assert await scheduler.run() == {"c": "x! x!"}


def whole_of(grown: GrowingGraph) -> PrimitiveGraph:
    return PrimitiveGraph(dict(grown.primitives), dict(grown.results), {})


def check_whole(grown: GrowingGraph) -> None:
    """Assert that children and users are those that follow from the primitives."""
    whole = whole_of(grown)
    assert grown.children == whole.children
    assert grown.users == whole.users


async def test_the_numbers_of_a_loop_follow_its_order() -> None:
    app = counted(4)
    graph = Graph.optimize(app, {"text": "x"})
    scheduler = scheduler_of(graph, runner=ToolRunner(app.engines["tool"].functions))
    await scheduler.run()
    grown = scheduler.state.graph
    numbers = [grown.primitives[one].number for one in whole_of(grown).order]
    assert numbers == list(range(1, 8))


def test_the_time_that_remains_is_added_up_through_what_has_grown() -> None:
    functions: dict[str, Any] = dict.fromkeys(("slow", "quick", "last"), str)
    app = two_branches({**functions, "join": lambda a, b: a}, lambda q: q)
    graph = GrowingGraph(Graph.optimize(app, {"q": "x"}).e_graph.with_depths(lambda one: 1.0))
    part = App("part", [Engine("tool", config={"functions": functions})])
    one = Node("tool", {"q": "text"}, {"r": "text"}, None, {"function": "quick"}, name="one")
    two = Node("tool", {"r": "text"}, {"b": "text"}, None, {"function": "last"}, name="two")
    part.update_template([one, two])
    graph.graft("grow", Graph.optimize(part, {"q": "x"}).e_graph, {}, lambda one: 2.0)
    remaining_s = {one: primitive.remaining_us / 1e6 for one, primitive in graph.primitives.items()}
    assert remaining_s == {"slow": 2, "grow": 2, "join": 1, "grow/one": 5, "grow/two": 3}


def mapped(**config: Any) -> App:
    """A tool finds nobody knows how many texts, a model is asked about each, and a tool joins."""
    app = App(
        "map", [Engine("llm"), Engine("tool", config={"functions": {"find": str, "join": str}})]
    )
    find = Node("tool", {"object": "text"}, {"found": "texts"}, None, {"function": "find"},
                name="find")  # fmt: skip
    ask = Node(
        "llm", {"found": "texts"}, {"answers": "texts" if not config else "text"},
        None if config else "batchable", {"prompt": "About {found}", **config}, name="ask",
    )  # fmt: skip
    app.update_template([find, ask])
    return app


class Found(Reference):
    """Finds ``texts``."""

    def __init__(self, graph: Graph, texts: list[str]) -> None:
        super().__init__(graph, Random(0))
        self._texts = texts

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if primitive.op is Op.TOOL:
            return {"out": self._texts}
        return await super().run(primitive, inputs)


@pytest.mark.parametrize("num", [0, 1, 5])
async def test_a_map_of_unknown_length_has_a_call_for_each_element(num: int) -> None:
    texts = [f"t{n}" for n in range(num)]
    graph = Graph.optimize(mapped(), {"object": "x"}, cache=GraphCache())
    assert [one.op for one in graph.e_graph.primitives.values()] == [Op.TOOL, Op.GROWTH]
    runner = Found(graph, texts)
    result = await scheduler_of(graph, runner=runner).run()
    assert result == {"answers": [elements(f"About {text}", 1)[0] for text in texts]}
    assert sum(one.op is Op.DECODING for one in runner.ran) == num


@pytest.mark.parametrize("mode", ["refine", "tree"])
@pytest.mark.parametrize("num", [0, 1, 3])
async def test_a_synthesis_over_an_unknown_number_of_elements(mode: str, num: int) -> None:
    prompts = {"refine_prompt": "{answer} {found}", "combine_prompt": "{answers}"}
    graph = Graph.optimize(mapped(synthesis=mode, **prompts), {"object": "x"})
    texts = [f"t{n}" for n in range(num)]
    result = await scheduler_of(graph, runner=Found(graph, texts)).run()
    leaves = [digest(f"About {text}") for text in texts]
    if not num:
        assert result == {"answers": digest("About ")}
    elif mode == "tree":
        numbered = "\n".join(f"{n + 1}. {leaf}" for n, leaf in enumerate(leaves))
        assert result == {"answers": digest(numbered)}
    else:
        answer = leaves[0]
        for text in texts[1:]:
            answer = digest(f"{answer} {text}")
        assert result == {"answers": answer}


def test_the_drawing_and_the_notes_name_what_grows() -> None:
    graph = Graph.optimize(mapped(), {"object": "x"})
    assert "growth · depth 0" in graph.explain()
    (note,) = (note for note in graph.notes if note.rule == "growth")
    assert (note.where, note.applied) == ("ask", False)


# -- what is refused -------------------------------------------------------------------------------


def growing(step: Any, **config: Any) -> App:
    app = App(
        "bad",
        [
            Engine("tool", config={"functions": {"do": lambda q: q, "read": lambda files: "x"}}),
            Engine("vectors"),
            Engine("growth", config={"functions": {"step": step}}),
        ],
    )
    config = {"function": "step", **config}
    app.update_template(
        [Node("growth", {"q": "text"}, {"answer": "text"}, None, config, name="grow")]
    )
    return app


def work(**changes: Any) -> Node:
    given: dict[str, Any] = {
        "engine": "tool", "inputs": {"q": "text"}, "outputs": {"answer": "text"},
        "config": {"function": "do"}, "name": "work", **changes,
    }  # fmt: skip
    return Node(**given)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (3, r"grow: its function returned .* \(int\), not text"),
        ({"other": "x"}, r"grow: its function returned .* \(dict\), not text"),
        (Growth([]), "0 components: give 1 to 256"),
        (Growth([work(engine="gpu")]), "work: unknown engine 'gpu'"),
        (Growth([work(outputs={"b": "text"})]), "grow: its growth does not give 'answer'"),
        (Growth([work(inputs={"p": "text"}, config={"function": "do"})]), "cannot be called"),
        (
            Growth([work(engine="growth", inputs={"p": "text"}, config={"function": "other"})]),
            "work: function is 'other'; the engine has step",
        ),
        (
            Growth([work()], {"q": 3}),
            r"grow: its function, as the value 'q', returned .* \(int\), not text",
        ),
        (
            Growth(
                [work(inputs={"files": "documents"}, config={"function": "read"})],
                {"files": [{"name": "a.pdf", "base64": "JVBERg=="}]},
            ),
            "has 'a.pdf', whose text is not read yet",
        ),
        (Growth([work()], {"z": "x"}), "grow: nothing takes the value 'z' of its growth"),
        (
            Growth([work(outputs={"answer": "texts"})]),
            "grow promises 'answer' as text, but work of its growth has it as texts",
        ),
        (Growth([work()], {"answer": "x"}), "grow: work of its growth and its values both give"),
        (
            Growth([work(config={"function": "do", "effects": ["mail"]})]),
            "grow: work of its growth works on 'mail', which the growth does not declare",
        ),
    ],
)
async def test_what_a_function_may_not_return_is_refused(made: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        await answered(growing(lambda q: made), {"q": "x"})


async def test_a_function_that_raises_is_named() -> None:
    with pytest.raises(ProgramError, match=r"grow: its function '\w+' raised KeyError: 'q'"):
        await answered(growing(lambda q: {}["q"]), {"q": "x"})
    with pytest.raises(ProgramError, match=r"grow: its function '\w+' raised SystemExit: 3"):
        await answered(growing(lambda q: sys.exit(3)), {"q": "x"})


async def test_a_declared_effect_and_a_value_that_is_the_output_are_taken() -> None:
    mailing = work(config={"function": "do", "effects": ["mail"]})
    app = growing(lambda q: Growth([mailing]), effects=["mail"])
    assert await answered(app, {"q": "x"}) == {"answer": "x"}
    aside = work(outputs={"aside": "text"})
    app = growing(lambda q: Growth([aside], {"answer": "at once"}))
    assert await answered(app, {"q": "x"}) == {"answer": "at once"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"function": "none"}, "grow: function is 'none'; the engine has step"),
        ({"effects": "mail"}, "grow: effects is 'mail': give a list of names"),
        ({"max_rounds": 0}, "grow: max_rounds is 0: give 1 or more"),
        ({"rounds": 1}, "the configuration of grow has no 'rounds'"),
    ],
)
def test_a_growth_that_can_never_run_is_refused(changes: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Graph.optimize(growing(lambda q: q, **changes), {"q": "x"})


def test_an_effect_keeps_its_order_to_a_growth_that_declares_it() -> None:
    """What comes behind a growth comes behind all that has grown."""
    order: list[str] = []

    def do(q: str) -> str:
        order.append(q)
        return q

    def say_it(q: str) -> str:
        order.append("say")
        return "said"

    def step(q: str) -> Growth:
        return Growth([work(config={"function": "do", "effects": ["mail"]})])

    functions = {"do": do, "say": say_it}
    app = App(
        "mail",
        [
            Engine("tool", config={"functions": functions}),
            Engine("growth", config={"functions": {"step": step}}),
        ],
    )
    config = {"function": "step", "effects": ["mail"]}
    grow = Node("growth", {"q": "text"}, {"answer": "text"}, None, config, name="grow")
    config = {"function": "say", "effects": ["mail"]}
    say = Node("tool", {"q": "text"}, {"said": "text"}, None, config, name="say")
    grow >> say
    app.update_template([grow, say])
    assert asyncio.run(answered(app, {"q": "x"})) == {"answer": "x", "said": "said"}
    assert order == ["x", "say"]
