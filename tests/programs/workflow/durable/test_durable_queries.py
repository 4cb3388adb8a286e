"""Queries that are cut off go on: nothing that has ended is carried out again, and the answer is
that of a query that was never cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kept_api import KeptApi
from workflow_expansion import QUESTION, answer, expansion
from workflow_growths import QUERY, ByReference, Grown, Reference, counted
from workflow_random import NAMES, RandomApp
from workflow_reference import ReferenceRun

from quire.core.errors import (
    AlreadyExists,
    CapacityError,
    EngineFault,
    EngineLost,
    InvalidArgument,
    ProgramFailed,
    QuireError,
    UnknownHandle,
)
from quire.core.kept_queries_config import KeptQueriesConfig
from quire.programs.workflow import (
    App,
    Engine,
    Graph,
    Growth,
    Node,
    OptPass,
    PrimitiveStep,
    StepLog,
    run_query,
)
from quire.programs.workflow.durable import (
    Journal,
    KeptQueries,
    KeptRecord,
    QueryId,
    QueryPlanned,
    digests_of_graph,
)
from quire.programs.workflow.durable.record import PASSING
from quire.programs.workflow.execution.growing import TemplateGrower
from quire.programs.workflow.execution.recording import OutcomeUnknown
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.query import Query
from quire.programs.workflow.query_graph import NO_CONFIG
from quire.testing import LocalNode
from quire.testing.local_node import scripted_node


class CutOff(BaseException):
    """The node is killed."""


class Prompt(str):
    """The state of the reference, which can be told what the model has said before."""

    def recall(self, element: Any) -> None:
        self.__dict__.setdefault("said", []).append(element)


class MortalRunner(Reference):
    """``num_left``: primitives that it carries out before the node is killed."""

    def __init__(self, graph: Graph, order: Random, num_left: int) -> None:
        super().__init__(graph, order)
        self.num_left = num_left

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self.num_left:
            raise CutOff
        self.num_left -= 1
        outputs = dict(await super().run(primitive, inputs))
        if "state" in outputs:
            outputs["state"] = inputs.get("state") or Prompt(outputs["state"])
            if primitive.op is not Op.PARTIAL_DECODING:
                outputs["state"] = Prompt(self.reference.outputs(primitive, inputs)["state"])
        return outputs


async def lived(
    api: KeptApi, graph: Graph, runner: Any, log: StepLog | None = None
) -> dict[str, Any]:
    """One life of the node: the query goes on until it is finished or the node is killed."""
    name = QueryId("q", repeat_interrupted=True)
    async with await Journal.opened(api, "app", name) as journal:  # type: ignore[arg-type]
        digests = await digests_of_graph(api, graph.e_graph, [])  # type: ignore[arg-type]
        if journal.planned is None:
            await journal.add(QueryPlanned(**digests, num_primitives=len(graph.e_graph.primitives)))
        grower = TemplateGrower(graph.app, graph.config, graph.passes, graph.cache)
        runners = dict.fromkeys(graph.app.engines, runner)
        scheduler = ByReference(
            graph.e_graph, graph.query, runners, lambda: 0.0, log, grower=grower,
            record=KeptRecord(journal),
            experience=graph.app.experience if graph.passes.speculates else None,
        )  # fmt: skip
        return await scheduler.run()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_query_that_is_killed_again_and_again_gives_the_answer(data: st.DataObject) -> None:
    speculates = data.draw(st.booleans())
    drawn = RandomApp(data.draw, branches=speculates, grows=data.draw(st.booleans()))
    written = drawn.app(data.draw(st.integers(1, 4)))
    query = {name: QUERY[name] for name in written.query_inputs}
    seed = data.draw(st.integers(0, 1 << 30))
    plain = Graph.optimize(written, query, passes=OptPass([]))
    wanted = ReferenceRun(plain.p_graph, plain.query, Random(seed), drawn.become).results()
    app, asked = written, set[str]()
    if data.draw(st.booleans()):
        grown = Grown(data.draw)
        nodes = grown.nodes(list(drawn.nodes), set(written.results))
        made = {**drawn.functions, **grown.functions}
        functions = {name: noted(asked, name, one) for name, one in made.items()}
        growth = Engine("growth", config={"functions": functions})
        others = [one for one in written.engines.values() if one.kind != "growth"]
        app = App("grown", [*others, growth])
        app.update_template(nodes)
    passes = OptPass(data.draw(st.sets(st.sampled_from(NAMES))))
    if speculates:
        passes = passes.speculating()
    graph = Graph.optimize(app, query, passes=passes)
    kills = Random(seed)
    with TemporaryDirectory() as directory:
        for life in range(200):
            runner = MortalRunner(graph, Random(seed + life), kills.randrange(1, 12) + life)
            ended, grew = asyncio.run(kept_of(KeptApi(Path(directory))))
            asked.clear()
            try:
                result = asyncio.run(lived(KeptApi(Path(directory)), graph, runner))
            except (CutOff, BaseExceptionGroup):
                result = None
            ran = {one.id for one in runner.ran if one.op not in PASSING}
            assert not ran & ended, "it had ended"
            assert not asked & grew, "a growth's function was called again"
            if result is not None:
                break
    assert result == wanted


@pytest.mark.parametrize("names", [[], NAMES])
async def test_rows_are_stored_again_for_a_search_that_is_still_to_come(
    tmp_path: Path, names: list[str]
) -> None:
    """Also where only a tool that has ended stands between the two."""
    functions = {"f": lambda **given: "x"}
    engines = [Engine(kind) for kind in ("embedding", "vectors")]
    app = App("app", [*engines, Engine("tool", config={"functions": functions})])
    embed = Node("embedding", {"items": "texts"}, {"vectors": "vectors"}, name="embed")
    ingest = Node("vectors", {"items": "texts", "vectors": "vectors"}, {"stored": "done"}, None,
                  {"operation": "ingest"}, name="ingest")  # fmt: skip
    tool = Node("tool", {"stored": "done", "question": "text"}, {"asked": "text"}, None,
                {"function": "f", "pure": True}, name="tool")  # fmt: skip
    embed_asked = Node("embedding", {"asked": "text"}, {"wanted": "vectors"}, name="embed_asked")
    search = Node("vectors", {"wanted": "vectors"}, {"found": "texts"}, None,
                  {"operation": "search", "top_k": 2}, name="search")  # fmt: skip
    app.update_template([embed, ingest, tool, embed_asked, search])
    query = {"question": "Who?", "items": ["a", "b", "c"]}
    graph = Graph.optimize(app, query, passes=OptPass(names))
    wanted = ReferenceRun(graph.p_graph, graph.query, Random(0)).results()
    runner = MortalRunner(graph, Random(0), 4)
    with pytest.raises(CutOff):
        await lived(KeptApi(tmp_path), graph, runner)
    runner = MortalRunner(graph, Random(0), 100)
    assert await lived(KeptApi(tmp_path), graph, runner) == wanted
    assert [one.id for one in runner.ran] == ["ingest", "search"]


def storing() -> list[Node]:
    """Texts are stored."""
    embed = Node("embedding", {"items": "texts"}, {"vectors": "vectors"}, name="embed")
    ingest = Node("vectors", {"items": "texts", "vectors": "vectors"}, {"stored": "done"}, None,
                  {"operation": "ingest"}, name="ingest")  # fmt: skip
    return [embed, ingest]


def searching(asked: str) -> list[Node]:
    """Texts are found for ``asked``."""
    embed = Node("embedding", {asked: "text"}, {"wanted": "vectors"}, name="embed_asked")
    search = Node("vectors", {"wanted": "vectors"}, {"found": "texts"}, None,
                  {"operation": "search", "top_k": 2}, name="search")  # fmt: skip
    return [embed, search]


async def ran_again(
    directory: Path, nodes: list[Node], step: Any, num_before: int, names: list[str]
) -> tuple[list[str], Any, Any]:
    """The primitives that run when a query is cut off behind ``num_before`` of them, its result,
    and that of a query which is not cut off."""
    engines = [
        *(Engine(kind) for kind in ("embedding", "vectors")),
        Engine("tool", config={"functions": {"f": lambda **given: "x"}}),
        Engine("growth", config={"functions": {"step": step}}),
    ]
    app = App("app", engines)
    app.update_template(nodes)
    query = {
        name: {"question": "Who?", "items": ["a", "b", "c"]}[name] for name in app.query_inputs
    }
    graph = Graph.optimize(app, query, passes=OptPass(names))
    whole = MortalRunner(graph, Random(0), 100)
    wanted = await lived(KeptApi(directory / "whole"), graph, whole)
    with pytest.raises(CutOff):
        await lived(KeptApi(directory), graph, MortalRunner(graph, Random(0), num_before))
    runner = MortalRunner(graph, Random(0), 100)
    result = await lived(KeptApi(directory), graph, runner)
    return [one.id for one in runner.ran], result, wanted


@pytest.mark.parametrize("names", [[], NAMES])
async def test_rows_are_stored_again_for_a_search_that_grows(
    tmp_path: Path, names: list[str]
) -> None:
    tool = Node("tool", {"stored": "done", "question": "text"}, {"asked": "text"}, None,
                {"function": "f", "pure": True}, name="tool")  # fmt: skip
    grow = Node("growth", {"asked": "text"}, {"found": "texts"}, None,
                {"function": "step", "effects": ["vectors"]}, name="grow")  # fmt: skip
    nodes = [*storing(), tool, grow]
    ran, result, wanted = await ran_again(
        tmp_path, nodes, lambda asked: Growth(searching("asked")), 3, names
    )
    assert ran == ["ingest", "grow/embed_asked", "grow/search"]
    assert result == wanted


@pytest.mark.parametrize("names", [[], NAMES])
async def test_rows_that_have_grown_are_not_stored_again_for_nobody(
    tmp_path: Path, names: list[str]
) -> None:
    grow = Node(
        "growth", {"question": "text", "items": "texts"}, {"answer": "text"}, None,
        {"function": "step", "effects": ["vectors"]}, name="grow",
    )  # fmt: skip
    tell = Node("tool", {"found": "texts"}, {"answer": "text"}, None, {"function": "f"},
                name="tell")  # fmt: skip

    def step(question: str, items: list[str]) -> Growth:
        stored, found = storing(), searching("question")
        stored[-1] >> found[-1]
        return Growth([*stored, *found, tell])

    ran, result, wanted = await ran_again(tmp_path, [grow], step, 4, names)
    assert ran == ["grow/tell"]
    assert result == wanted


async def kept_of(api: KeptApi) -> tuple[set[str], set[str]]:
    """The primitives that have ended, and the functions of growths that have returned."""
    async with await Journal.opened(api, "app", QueryId("q")) as journal:  # type: ignore[arg-type]
        grew = {one.rpartition("/")[2].removeprefix("grown") for one in journal._grew}
        return set(journal._ended), {f"g{number}" for number in grew}


def noted(asked: set[str], name: str, function: Any) -> Any:
    def call(**given: Any) -> Any:
        asked.add(name)
        return function(**given)

    return call


# -- on a node -------------------------------------------------------------------------------------


class Life:
    """Nodes one after the other that have the same data directory, and what their models were
    asked."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.prompts: list[str] = []

    async def ask(
        self,
        app: App,
        query: Mapping[str, Any] | None,
        config: Mapping[str, Any] = NO_CONFIG,
        *,
        log: StepLog | None = None,
        tenant: str = "default",
        **name: Any,
    ) -> Any:
        """Ask it of a new node. It is killed if ``log`` raises ``CutOff``."""

        def noted(prompt: str) -> str:
            self.prompts.append(prompt)
            return answer(prompt)

        kept = KeptQueries(self._directory, KeptQueriesConfig())
        async with scripted_node(noted, page_size=4) as local:
            local.kept_queries = kept
            asked = Query(app, query, config, name=QueryId("q", **name), log=log)
            asked.prepare()
            connect = local.connect("query", tenant=tenant)
            try:
                return await local.run(asked.program().main, connect=connect)
            except ProgramFailed as failed:
                raise asked.error or failed from failed


class KilledAt(StepLog):
    def __init__(self, *ids: str) -> None:
        super().__init__()
        self._ids = ids

    async def ended(self, step: PrimitiveStep) -> None:
        await super().ended(step)
        if step.primitive.id in self._ids:
            raise Killed("the node is killed")


class Killed(QuireError):
    code = "killed"


async def test_a_model_is_not_asked_again_for_what_it_has_answered(tmp_path: Path) -> None:
    life, log = Life(tmp_path), StepLog()
    with pytest.raises(Killed):
        await life.ask(expansion(), {"question": QUESTION}, log=KilledAt("work.1"))
    life.prompts.clear()
    assert await life.ask(expansion(), {"question": QUESTION}, log=log) == {"answer": "Kabo."}
    assert log.num_kept > 3
    ran = [step.primitive.id for step in log.steps]
    assert "expand.decode.0" not in ran
    assert "work.1" not in ran
    assert ran[-1] == "last.decode"
    life.prompts.clear()
    again = StepLog()
    assert await life.ask(expansion(), {"question": QUESTION}, log=again) == {"answer": "Kabo."}
    assert await life.ask(expansion(), None, resume=True) == {"answer": "Kabo."}
    assert not life.prompts, "a finished query asks nobody"
    assert again.num_kept == again.num_before > log.num_kept


async def test_a_prompt_is_computed_again_only_where_its_answer_is_not_kept(tmp_path: Path) -> None:
    life, log = Life(tmp_path), StepLog()
    with pytest.raises(Killed):
        await life.ask(expansion(), {"question": QUESTION}, log=KilledAt("expand.decode.0"))
    life.prompts.clear()
    assert await life.ask(expansion(), {"question": QUESTION}, log=log) == {"answer": "Kabo."}
    ran = [step.primitive.id for step in log.steps]
    assert "expand.prefill" in ran, "the rest of the answer is still to come"
    assert "expand.decode.0" not in ran, "its element is in use"
    life.prompts.clear()
    with pytest.raises(Killed):
        await Life(tmp_path / "b").ask(
            expansion(), {"question": QUESTION}, log=KilledAt("last.prefill.2")
        )
    other, log = Life(tmp_path / "b"), StepLog()
    assert await other.ask(expansion(), {"question": QUESTION}, log=log) == {"answer": "Kabo."}
    assert not [one for one in other.prompts if "Expand" in one]


async def test_elements_that_are_others_now_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path)
    with pytest.raises(Killed):
        await life.ask(expansion(), {"question": QUESTION}, log=KilledAt("expand.decode.0"))
    monkeypatch.setattr("test_durable_queries.answer", lambda prompt: '["x", "y", "z"]<|end|>')
    with pytest.raises(EngineFault, match="another one since its engine was lost"):
        await life.ask(expansion(), {"question": QUESTION})


@pytest.mark.parametrize(
    ("query", "config", "message"),
    [
        ({"question": "Another?"}, {}, "with other inputs: ask as before"),
        ({"question": QUESTION}, {"last": {"max_tokens": 99}}, "with another configuration"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
async def test_an_id_is_of_one_query(
    tmp_path: Path, query: Any, config: Any, message: str, finished: bool
) -> None:
    life = Life(tmp_path)
    if finished:
        await life.ask(expansion(), {"question": QUESTION})
    else:
        with pytest.raises(Killed):
            await life.ask(expansion(), {"question": QUESTION}, log=KilledAt("work.1"))
    with pytest.raises(AlreadyExists, match=f"the query 'q' was asked {message}"):
        await life.ask(expansion(), query, config)
    other_tenant = await life.ask(expansion(), query, config, tenant="other")
    assert other_tenant == {"answer": "Kabo."}
    with pytest.raises(AlreadyExists, match="another template of that name"):
        await life.ask(expansion(max_tokens=99), {"question": QUESTION})
    with pytest.raises(AlreadyExists, match="another template of that name"):
        await life.ask(expansion(max_tokens=99), None, resume=True)


async def test_what_was_never_asked_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(UnknownHandle, match="nothing is kept of a query 'q' of expansion"):
        await Life(tmp_path).ask(expansion(), None, resume=True)
    with pytest.raises(InvalidArgument, match="has its inputs and configuration: leave them out"):
        await Life(tmp_path).ask(expansion(), {"question": QUESTION}, resume=True)


# -- tools -----------------------------------------------------------------------------------------


def paying(pay: Any, **config: Any) -> App:
    """A tool pays, another one reports."""
    functions = {"pay": pay, "report": lambda paid: f"paid {paid}"}
    app = App("paying", [Engine("tool", config={"functions": functions})])
    first = Node("tool", {"sum": "text"}, {"paid": "text"}, None,
                 {"function": "pay", **config}, name="pay")  # fmt: skip
    then = Node("tool", {"paid": "text"}, {"answer": "text"}, None,
                {"function": "report", "pure": True}, name="report")  # fmt: skip
    app.update_template([first, then])
    return app


class Pay:
    """The first call fails with ``error``, or without one takes until its node is killed."""

    def __init__(self, error: Exception | None = None, *, fails: bool = True) -> None:
        self.calls: list[str] = []
        self.began = asyncio.Event()
        self._error, self._fails = error, fails

    async def pay(self, sum: str) -> str:
        self.calls.append(sum)
        if self._fails:
            self._fails = False
            if self._error is not None:
                raise self._error
            self.began.set()
            await asyncio.Event().wait()
        return sum


async def cut_off(life: Life, app: App, pay: Pay) -> None:
    """The node is killed while the tool pays."""
    asking = asyncio.create_task(life.ask(app, {"sum": "9"}))
    await pay.began.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_tool_that_was_cut_off_is_called_again_only_if_the_client_says_so(
    tmp_path: Path,
) -> None:
    life, pay = Life(tmp_path), Pay()
    app = paying(pay.pay)
    await cut_off(life, app, pay)
    message = "was cut off while pay ran, and it is not known whether the call took effect: check"
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=message):
            await life.ask(app, {"sum": "9"})
    assert pay.calls == ["9"]
    found = await life.ask(app, None, resume=True, repeat_interrupted=True)
    assert found == {"answer": "paid 9"}
    assert await life.ask(app, {"sum": "9"}) == {"answer": "paid 9"}
    assert pay.calls == ["9", "9"]


async def test_a_tool_that_is_declared_pure_is_called_again(tmp_path: Path) -> None:
    life, pay = Life(tmp_path), Pay()
    app = paying(pay.pay, pure=True)
    await cut_off(life, app, pay)
    assert await life.ask(app, {"sum": "9"}) == {"answer": "paid 9"}


async def test_a_tool_that_has_failed_is_called_again(tmp_path: Path) -> None:
    life, pay = Life(tmp_path), Pay(EngineFault("the bank is closed"))
    app = paying(pay.pay, effects=["account"])
    with pytest.raises(EngineFault, match="pay: the bank is closed"):
        await life.ask(app, {"sum": "9"})
    assert await life.ask(app, {"sum": "9"}) == {"answer": "paid 9"}
    assert pay.calls == ["9", "9"]


@pytest.mark.parametrize("error", [EngineLost("gone"), OutcomeUnknown("no answer")])
async def test_a_tool_of_which_nobody_knows_what_it_has_done_is_not_called_again(
    tmp_path: Path, error: QuireError
) -> None:
    life, pay = Life(tmp_path), Pay(error)
    app = paying(pay.pay)
    with pytest.raises(type(error), match="pay: "):
        await life.ask(app, {"sum": "9"})
    with pytest.raises(InvalidArgument, match="was cut off while pay ran"):
        await life.ask(app, {"sum": "9"})
    assert pay.calls == ["9"]


async def test_a_tool_that_has_ended_is_not_called_again(tmp_path: Path) -> None:
    life, pay = Life(tmp_path), Pay(fails=False)
    with pytest.raises(Killed):
        await life.ask(paying(pay.pay), {"sum": "9"}, log=KilledAt("pay"))
    assert await life.ask(paying(pay.pay), {"sum": "9"}) == {"answer": "paid 9"}
    assert pay.calls == ["9"]


async def test_a_pure_tool_has_no_effects() -> None:
    with pytest.raises(InvalidArgument, match=r"pay: pure is True: .* only without effects"):
        paying(str, pure=True, effects=["account"])


async def test_what_cannot_be_kept_is_refused_by_name(tmp_path: Path) -> None:
    functions = {"make": lambda sum: {sum, "b"}, "take": lambda made: "x"}
    app = App("odd", [Engine("tool", config={"functions": functions})])
    make = Node("tool", {"sum": "text"}, {"made": "object"}, config={"function": "make"},
                name="make")  # fmt: skip
    take = Node("tool", {"made": "object"}, {"answer": "text"}, config={"function": "take"},
                name="take")  # fmt: skip
    app.update_template([make, take])
    with pytest.raises(InvalidArgument, match="make: its 'out' has a set, which cannot be kept"):
        await Life(tmp_path).ask(app, {"sum": "a"})


# -- growing ---------------------------------------------------------------------------------------


async def test_a_loop_goes_on_in_the_round_where_it_was_cut_off(tmp_path: Path) -> None:
    life, log = Life(tmp_path), StepLog()
    with pytest.raises(Killed):
        await life.ask(counted(6), {"text": "x"}, log=KilledAt("loop/loop/work"))
    assert await life.ask(counted(6), {"text": "x"}, log=log) == {"answer": "xxxxxx"}
    ran = [one.primitive.id for one in log.steps if one.primitive.op is Op.TOOL]
    assert ran == ["loop/loop/loop/work", "loop/loop/loop/loop/work",
                   "loop/loop/loop/loop/loop/work"]  # fmt: skip
    assert (log.num_kept, log.num_before) == (4, 5)


async def test_one_node_answers_a_query_at_a_time(tmp_path: Path) -> None:
    began, let_go = asyncio.Event(), asyncio.Event()

    async def wait(sum: str) -> str:
        began.set()
        await let_go.wait()
        return sum

    life = Life(tmp_path)
    first = asyncio.create_task(life.ask(paying(wait), {"sum": "1"}))
    await began.wait()
    with pytest.raises(CapacityError, match="is being answered: wait for its end"):
        await life.ask(paying(wait), {"sum": "1"})
    let_go.set()
    assert await first == {"answer": "paid 1"}


async def test_inside_a_program(tmp_path: Path) -> None:
    async def main(api: Any) -> Any:
        return await run_query(api, counted(3), {"text": "x"}, name=QueryId("q"))

    async with LocalNode(kept_queries=KeptQueries(tmp_path, KeptQueriesConfig())) as local:
        assert await local.run(main) == {"answer": "xxx"}
    async with LocalNode() as local:
        with pytest.raises(ProgramFailed, match="start it with --data-dir"):
            await local.run(main)
