"""Whatever the passes make of a graph, and in whatever order it then runs, its results are those of
the graph as it was built."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workflow_apps import QUERY, advanced
from workflow_growths import QUERY as QUERIES
from workflow_growths import run
from workflow_random import NAMES, RandomApp
from workflow_reference import ReferenceRun

from quire.programs.workflow import Graph, OptPass
from quire.programs.workflow.graphs.primitives import Op


def results(graph: Graph, e_graph: bool, seed: int) -> dict[str, Any]:
    chosen = graph.e_graph if e_graph else graph.p_graph
    return ReferenceRun(chosen, graph.query, Random(seed)).results()


@settings(max_examples=30)
@given(st.data())
def test_every_subset_of_passes_gives_the_unoptimised_answer(data: st.DataObject) -> None:
    drawn = RandomApp(data.draw)
    app = drawn.app(data.draw(st.integers(1, 4)))
    seed = data.draw(st.integers(0, 1 << 30))
    query = {name: QUERIES[name] for name in app.query_inputs}
    for names in (data.draw(st.sets(st.sampled_from(NAMES))), NAMES):
        graph = Graph.optimize(app, query, passes=OptPass(names))
        assert results(graph, True, seed) == results(graph, False, seed + 1)


@settings(max_examples=30)
@given(st.data())
def test_a_graph_that_grows_gives_by_every_subset_what_is_computed_without_growing(
    data: st.DataObject,
) -> None:
    drawn = RandomApp(data.draw, grows=True)
    app = drawn.app(data.draw(st.integers(1, 4)))
    seed = data.draw(st.integers(0, 1 << 30))
    query = {name: QUERIES[name] for name in app.query_inputs}
    plain = Graph.optimize(app, query, passes=OptPass([]))
    assert any(one.op is Op.GROWTH for one in plain.p_graph.primitives.values())
    wanted = ReferenceRun(plain.p_graph, plain.query, Random(seed), drawn.become).results()
    for names in (data.draw(st.sets(st.sampled_from(NAMES))), NAMES):
        graph = Graph.optimize(app, query, passes=OptPass(names))
        assert run(graph, seed)[0] == wanted


@pytest.mark.parametrize("synthesis", ["one_shot", "refine", "tree"])
def test_advanced_rag_by_every_subset(synthesis: str) -> None:
    app = advanced(synthesis=synthesis)
    wanted = results(Graph.optimize(app, QUERY), False, 0)
    for chosen in range(16):
        names = [name for place, name in enumerate(NAMES) if chosen >> place & 1]
        graph = Graph.optimize(app, QUERY, passes=OptPass(names))
        assert all(results(graph, True, seed) == wanted for seed in range(2)), names


def test_the_reference_notices_a_search_that_overtakes_the_ingestion() -> None:
    graph = Graph.optimize(advanced(), QUERY).e_graph
    free = {one: replace(p, after=frozenset()) for one, p in graph.primitives.items()}
    hurried = replace(graph, primitives=free)
    wanted = ReferenceRun(graph, QUERY, Random(0)).results()
    others: list[Any] = []
    for seed in range(8):
        try:
            others.append(ReferenceRun(hurried, QUERY, Random(seed)).results())
        except (AssertionError, IndexError):  # too few were found
            others.append(None)
    assert any(one != wanted for one in others)
