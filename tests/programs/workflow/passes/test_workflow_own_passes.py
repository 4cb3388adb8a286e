"""Passes of a developer: of a query or an application, and those that break a rule."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.workflow import (
    App,
    Engine,
    Graph,
    Growth,
    Node,
    Note,
    OptPass,
    Rewritten,
    run_query,
    workflow,
)
from quire.programs.workflow.graphs.graph import Draft, PrimitiveGraph
from quire.programs.workflow.graphs.values import QUERY, Ref
from quire.programs.workflow.passes import STANDARD
from quire.programs.workflow.query import Query
from quire.testing import LocalNode


def told(passes: OptPass | None = None) -> App:
    """Two tools with an effect; the second one's text is the result."""
    app = App("told", [Engine("tool", {"functions": {"up": up, "low": low}})], passes=passes)
    first = {"function": "up", "effects": ["log"]}
    second = {"function": "low", "effects": ["log"]}
    app.update_template(
        [
            Node("tool", {"text": "text"}, {"high": "text"}, config=first, name="first"),
            Node("tool", {"high": "text"}, {"answer": "text"}, config=second, name="second"),
        ]
    )
    return app


def up(text: str) -> str:
    return text.upper()


def low(high: str) -> str:
    return high.lower()


def with_rule(rule: Callable[..., Any]) -> OptPass:
    passes = OptPass()
    passes.register("mine", rule)
    return passes


def fails(graph: PrimitiveGraph, profiles: object) -> Rewritten:
    raise KeyError("x")


def exits(graph: PrimitiveGraph, profiles: object) -> Rewritten:
    sys.exit(3)


def cycle(graph: PrimitiveGraph, profiles: object) -> Rewritten:
    draft = Draft(graph)
    draft.put(replace(draft.primitives["first"], after=frozenset({"second"})))
    return Rewritten(draft.graph())


def loses(one: str) -> Callable[[PrimitiveGraph, object], Rewritten]:
    def rule(graph: PrimitiveGraph, profiles: object) -> Rewritten:
        draft = Draft(graph)
        draft.remove(one)
        return Rewritten(draft.graph())

    return rule


def silences(graph: PrimitiveGraph, profiles: object) -> Rewritten:
    """Lose the effect of the first tool without a broken reference."""
    draft = Draft(graph)
    if "first" not in draft.primitives:
        return Rewritten(graph)
    draft.redirect(lambda ref: Ref(QUERY, "text") if ref.primitive == "first" else ref)
    draft.reorder("first", [])
    draft.remove("first")
    return Rewritten(draft.graph())


def elsewhere(graph: PrimitiveGraph, profiles: object) -> Rewritten:
    draft = Draft(graph)
    draft.put(replace(draft.primitives["first"], engine="gpu"))
    return Rewritten(draft.graph())


def other_port(graph: PrimitiveGraph, profiles: object) -> Rewritten:
    draft = Draft(graph)
    draft.redirect(lambda ref: replace(ref, port="nothing") if ref.primitive == "first" else ref)
    return Rewritten(draft.graph())


def other_type(graph: PrimitiveGraph, profiles: object) -> Rewritten:
    return Rewritten(replace(graph, results={"answer": Ref("second", "nothing")}))


WRONG: list[tuple[Any, str]] = [
    (fails, r"failed at \w+\.py:\d+: KeyError: 'x'"),
    (exits, r"failed at \w+\.py:\d+: SystemExit: 3"),
    (lambda graph: Rewritten(graph), "failed: TypeError: .* takes 1 positional argument"),
    (cycle, r"failed at \w+\.py:\d+: the primitives first, second wait for one another: remove"),
    (loses("first"), "second waits for first, which is not in the graph: keep it, or redirect"),
    (loses("second"), "the result 'answer' comes from second, which is not in the graph: keep it"),
    (silences, "removed first, which has effects: keep it"),
    (elsewhere, "gives first the engine 'gpu': use tool"),
    (other_port, r"lets second use first\.nothing, which is not there"),
    (other_type, "makes nothing of the result 'answer', which is text: keep it"),
    (lambda graph, _: None, r"returned NoneType: return Rewritten\(graph\)"),
    (lambda graph, _: graph, r"returned PrimitiveGraph: return Rewritten\(graph\)"),
    (lambda graph, _: Rewritten(graph, cast(Any, ("done",))), "returned notes that are no Note"),
]


@pytest.mark.parametrize(("rule", "message"), WRONG)
def test_a_pass_that_breaks_a_rule_is_named(rule: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^the pass 'mine' .*{message}"):
        Graph.optimize(told(), {"text": "Hi"}, passes=with_rule(rule))


def test_only_passes_that_still_change_the_graph_are_named() -> None:
    passes = with_rule(lambda graph, _: Rewritten(replace(graph)))
    with pytest.raises(InvalidArgument, match=r"^the passes mine still change the graph after 32"):
        Graph.optimize(told(), {"text": "Hi"}, passes=passes)


@pytest.mark.parametrize("given", ["prune", ["prune"], STANDARD, OptPass])
@pytest.mark.parametrize(
    "use",
    [
        lambda passes: told(passes),
        lambda passes: Graph.optimize(told(), {"text": "Hi"}, passes=passes),
        lambda passes: Query(told(), {"text": "Hi"}, passes=passes),
    ],
)
def test_what_are_no_passes_is_refused_where_it_is_given(
    use: Callable[[Any], Any], given: object
) -> None:
    with pytest.raises(InvalidArgument, match=r"^passes is .*: give an OptPass, for example"):
        use(given)


@pytest.mark.parametrize(("name", "rule"), [("", fails), (3, fails), ("mine", 5), ("mine", None)])
def test_what_is_no_pass_is_not_registered(name: Any, rule: Any) -> None:
    with pytest.raises(InvalidArgument, match="give a name and a function"):
        OptPass().register(name, rule)

    async def later(graph: PrimitiveGraph, profiles: object) -> Rewritten:
        return Rewritten(graph)

    rule_that_is_awaited: Any = later
    with pytest.raises(InvalidArgument, match="give a name and a function"):
        OptPass().register("later", rule_that_is_awaited)


def noted(graph: PrimitiveGraph, profiles: object) -> Rewritten:
    return Rewritten(graph, (Note("mine", "first", "was seen", applied=False),))


def test_the_passes_of_an_application_optimise_its_queries() -> None:
    app = told(with_rule(noted))
    assert "mine" in {note.rule for note in Graph.optimize(app, {"text": "Hi"}).notes}
    chosen = app.passes.only(["mine", "prune"])
    assert [name for name, _ in chosen.passes] == ["prune", "mine"]
    with pytest.raises(
        InvalidArgument, match=r"no pass 'x'; the passes are prune.*, speculate, mi"
    ):
        app.passes.only(["x"])
    others = Graph.optimize(app, {"text": "Hi"}, passes=OptPass())
    assert "mine" not in {note.rule for note in others.notes}
    ahead = Query(app, {"text": "Hi"}, speculate=True)
    ahead.prepare()
    assert ahead.speculates
    assert ahead.graph is not None
    assert "mine" in {note.rule for note in ahead.graph.notes}


async def test_a_wrong_pass_fails_its_query_and_no_other() -> None:
    async def main(api: Api) -> Any:
        with pytest.raises(InvalidArgument, match="the pass 'mine' failed"):
            await run_query(api, told(with_rule(fails)), {"text": "Hi"})
        return await run_query(api, told(), {"text": "Hi"})

    async with LocalNode() as node:
        assert await node.run(main) == {"answer": "hi"}


class Seen:
    """A pass that notes the applications' graphs that it was given."""

    def __init__(self) -> None:
        self.graphs: list[PrimitiveGraph] = []

    def rule(self, graph: PrimitiveGraph, profiles: object) -> Rewritten:
        self.graphs.append(graph)
        return Rewritten(graph)


async def test_the_program_of_an_application_takes_its_passes_or_those_that_it_is_given() -> None:
    own, given = Seen(), Seen()
    app = told(with_rule(own.rule))
    async with LocalNode() as node:
        for program, seen in (
            (workflow(app), own),
            (workflow(app, with_rule(given.rule)), given),
        ):
            assert await node.run(program, json.dumps({"text": "Hi"})) == {"answer": "hi"}
            assert set(seen.graphs[0].primitives) == {"first", "second"}
        assert (len(own.graphs), len(given.graphs)) == (1, 1)


class Held:
    """A pass that does not return before it is let go."""

    def __init__(self) -> None:
        self.began, self.released = threading.Semaphore(0), threading.Event()

    def rule(self, graph: PrimitiveGraph, profiles: object) -> Rewritten:
        self.began.release()
        self.released.wait()
        return Rewritten(graph)


def enough(text: str) -> Growth:
    config = {"function": "up"}
    return Growth([Node("tool", {"text": "text"}, {"answer": "text"}, config=config, name="grown")])


def growing(rule: Callable[..., Any]) -> App:
    """An application whose passes see the grown components only."""

    def once_grown(graph: PrimitiveGraph, profiles: object) -> Rewritten:
        return rule(graph, profiles) if "grown" in graph.primitives else Rewritten(graph)

    engines = [
        Engine("tool", {"functions": {"up": up}}),
        Engine("growth", {"functions": {"enough": enough}}),
    ]
    app = App("growing", engines, passes=with_rule(once_grown))
    config = {"function": "enough"}
    app.update_template(
        [Node("growth", {"text": "text"}, {"answer": "text"}, config=config, name="first")]
    )
    return app


async def prepared(app: App, api: Api) -> Any:
    asked = Query(app, {"text": "Hi"})
    await asked.prepared()


async def answered(app: App, api: Api) -> Any:
    return await run_query(api, app, {"text": "Hi"})


async def asked(app: App, api: Api) -> Any:
    query = Query(app, {"text": "Hi"})
    return await query.program().main(api)


@pytest.mark.parametrize("make", [lambda rule: told(with_rule(rule)), growing])
@pytest.mark.parametrize("way", [prepared, answered, asked])
async def test_a_pass_that_never_returns_holds_up_only_its_application(way: Any, make: Any) -> None:
    """More queries than the loop's executor has threads: each is refused, and others run."""
    held = Held()
    app = make(held.rule)
    app.passes_limit_s = 0.05
    if make is growing and way is prepared:
        pytest.skip("its passes see nothing before it runs")

    async def main(api: Api) -> Any:
        num = 2 * (os.cpu_count() or 1) + 10
        failed = await asyncio.gather(*(way(app, api) for _ in range(num)), return_exceptions=True)
        return [str(one) for one in failed], await run_query(api, told(), {"text": "Hi"})

    try:
        async with LocalNode() as node:
            failed, answer = await asyncio.wait_for(node.run(main), 60)
    finally:
        held.released.set()
    assert answer == {"answer": "hi"}
    for one in failed:
        assert f"the passes mine of {app.name} have not ended within 0.05 s" in one
    assert held.began.acquire(blocking=False)
