"""Queries over paced engines: what was calibrated stays so, baselines do what is said of them, and
every query ends in the same way each time."""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import partial
from typing import Annotated, TypedDict, cast

import pytest

from benchmarks.ayo import bounds, figures, gap, timeline, waits
from benchmarks.ayo.applications import (
    ADVANCED,
    APPLICATIONS,
    NAIVE,
    SEARCH,
    Application,
    models_of,
)
from benchmarks.ayo.engines import Gathering
from benchmarks.ayo.figures import Setting
from benchmarks.ayo.frameworks import ChainQuery, StepsQuery
from benchmarks.ayo.modules import MODULES
from benchmarks.ayo.playing import Load, play, play_one, poisson, seconds_of
from benchmarks.ayo.query import PacedQuery
from benchmarks.ayo.stated import CORES, MODELS, Stated
from benchmarks.ayo.systems import BASELINES, OURS, System
from benchmarks.ayo.world import World

CORE = CORES[0]
ALL = {**BASELINES, **OURS}
applications = pytest.mark.parametrize("application", APPLICATIONS.values(), ids=APPLICATIONS)


class State(TypedDict):
    """Of a graph of LangGraph; what nodes of one step give is put together."""

    ended: Annotated[list[int], operator.add]


def alone_s(system: System, application: Application, stated: Stated | None = None) -> float:
    return seconds_of(play_one(system, application, stated or Stated(), CORE))


def test_llamadist_alone_is_calibrated_to_what_the_paper_says() -> None:
    assert round(alone_s(BASELINES["LlamaDist-TO"], ADVANCED), 1) == 4.1


def test_prefills_take_what_table_3_says() -> None:
    times = MODELS["llama-2-7b"]
    for num_tokens, milliseconds in ((1000, 260.36), (1700, 414.09), (3000, 720.15)):
        taken_s = times.prefill_s + times.prompt_token_s * num_tokens
        assert taken_s == pytest.approx(milliseconds / 1e3, rel=0.02)


@applications
def test_the_graph_without_passes_takes_as_long_as_the_chain_of_modules(
    application: Application,
) -> None:
    """The modules have the requests of the graph, written down once more."""
    graph_s = alone_s(System("quire", "fcfs", "none"), application)
    assert graph_s == pytest.approx(alone_s(BASELINES["LlamaDist-TO"], application), rel=0.001)


@pytest.mark.parametrize("name", ["search", "naive"])
def test_other_instructions_stand_in_the_prompts_of_graph_and_modules(name: str) -> None:
    application = APPLICATIONS[name].instructed(gap.LONG)
    graph_s = alone_s(System("quire", "fcfs", "none"), application)
    assert graph_s == pytest.approx(alone_s(BASELINES["LlamaDist-TO"], application), rel=0.001)
    assert graph_s > 1.1 * alone_s(BASELINES["LlamaDist-TO"], APPLICATIONS[name])


def test_an_encoder_of_a_baseline_waits_for_a_full_batch_or_its_timeout() -> None:
    """The question of naive RAG stands alone; 48 chunks are enough for full batches."""
    chain = BASELINES["LlamaDist-TO"]
    waited_s = alone_s(chain, NAIVE, replace(Stated(), timeout_s=0.1)) - alone_s(chain, NAIVE)
    assert waited_s == pytest.approx(0.1)
    quire = OURS["quire"]
    assert alone_s(quire, NAIVE, replace(Stated(), timeout_s=0.1)) == alone_s(quire, NAIVE)


def test_who_is_let_in_as_enough_does_not_begin_a_second_time() -> None:
    simulation = World("fcfs", Stated(), {}).simulation
    gathering, began_s = Gathering(simulation, 4, 1.0), list[tuple[str, float]]()

    def ask(name: str, num_texts: int, at_s: float) -> None:
        def begin() -> None:
            began_s.append((name, simulation.now_s))

        simulation.at(at_s, partial(gathering.enter, num_texts, begin))

    ask("a", 2, 0.0)
    ask("b", 2, 0.5)
    ask("c", 1, 0.75)
    simulation.run()
    assert began_s == [("a", 0.5), ("b", 0.5), ("c", 1.75)]


def test_what_is_stated_of_the_baselines_engines_makes_them_slower() -> None:
    rows = gap.rows(Setting(Stated(), 1, ()), CORE)
    faster = {(row["application"], row["variant"]): cast(float, row["faster"]) for row in rows}
    for name in ("naive", "advanced"):
        single = [faster[name, one] for one in ("timeout", "by request", "instructions")]
        assert faster[name, "as stated"] < min(single) < max(single) < faster[name, "all"]


@applications
def test_modules_of_a_chain_follow_one_another(application: Application) -> None:
    query = cast(ChainQuery, play_one(BASELINES["LlamaDist-TO"], application, Stated(), CORE))
    assert sum(query.times.values()) == pytest.approx(seconds_of(query))
    assert list(query.times) == [module.name for module in query.modules]


def test_independent_modules_of_the_parallel_one_run_at_once() -> None:
    query = cast(ChainQuery, play_one(BASELINES["LlamaDistPC-TO"], ADVANCED, Stated(), CORE))
    hidden_s = sum(query.times.values()) - seconds_of(query)
    beside_the_index_s = query.times["expand"] + query.times["embed question"]
    assert hidden_s == pytest.approx(beside_the_index_s)


def test_a_superstep_waits_for_the_slowest_of_its_modules() -> None:
    query = cast(StepsQuery, play_one(BASELINES["LangGraph-TO"], ADVANCED, Stated(), CORE))
    assert query.steps == [
        ["index", "expand"], ["embed question"], ["search"], ["rank"], ["synthesis"]
    ]  # fmt: skip
    slowest_s = sum(max(query.times[name] for name in step) for step in query.steps)
    assert seconds_of(query) == pytest.approx(slowest_s)
    assert seconds_of(query) > alone_s(BASELINES["LlamaDistPC-TO"], ADVANCED)


@applications
def test_supersteps_are_those_of_langgraph(application: Application) -> None:
    graphs = pytest.importorskip("langgraph.graph", exc_type=ImportError)
    modules = MODULES[application.name](Stated())
    graph = graphs.StateGraph(State)
    for module in modules:
        graph.add_node(module.name, lambda state: {"ended": [1]})
        graph.add_edge(list(module.needs) if module.needs else graphs.START, module.name)
    steps: dict[int, set[str]] = {}
    for event in graph.compile().stream({"ended": []}, stream_mode="debug"):
        if event["type"] == "task":
            steps.setdefault(event["step"], set()).add(event["payload"]["name"])
    query = cast(StepsQuery, play_one(BASELINES["LangGraph-TO"], application, Stated(), CORE))
    assert list(map(set, query.steps)) == [steps[number] for number in sorted(steps)]


def test_agents_take_one_message_at_a_time() -> None:
    (found,) = play(BASELINES["AutoGen-TO"], [Load(SEARCH, [0.0] * 8)], Stated(), CORE)
    (free,) = play(BASELINES["LlamaDist-TO"], [Load(SEARCH, [0.0] * 8)], Stated(), CORE)
    assert found.mean_s > 1.1 * free.mean_s


@pytest.mark.parametrize("framework", ["LlamaDist", "LlamaDistPC", "LangGraph"])
def test_per_invocation_an_engine_takes_one_invocation_at_a_time(framework: str) -> None:
    """Of AutoGen so few messages are under way that it makes no difference."""
    one, all_waiting = BASELINES[f"{framework}-PO"], BASELINES[f"{framework}-TO"]
    assert alone_s(one, SEARCH) == pytest.approx(alone_s(all_waiting, SEARCH))
    together = Load(SEARCH, [0.0] * 6)
    (bundled,), (batched,) = (
        play(system, [together], Stated(), CORE) for system in (one, all_waiting)
    )
    assert bundled.makespan_s > 1.2 * batched.makespan_s


def test_a_query_without_need_of_a_search_makes_none() -> None:
    arrivals_s = [5.0 * number for number in range(10)]
    for system in ALL.values():
        (found,) = play(system, [Load(SEARCH, arrivals_s)], Stated(), CORE)
        assert found.p99_s == pytest.approx(alone_s(system, SEARCH))
        assert found.mean_s < found.p99_s - 0.25 * Stated().web_s


@applications
def test_no_pass_makes_a_query_slower(application: Application) -> None:
    chain_s = alone_s(BASELINES["LlamaDist-TO"], application)
    query = cast(PacedQuery, play_one(OURS["quire"], application, Stated(), CORE))
    assert seconds_of(query) <= chain_s + 1e-9
    assert max(end_s for _, end_s in query.spans.values()) == query.ended_s


@pytest.mark.parametrize("name", ALL)
def test_queries_end_in_the_same_way_each_time(name: str) -> None:
    load = Load(NAIVE, poisson(0.8, 5))
    found = play(ALL[name], [load], Stated(), CORE)
    assert found == play(ALL[name], [load], Stated(), CORE)
    assert 0 < found[0].mean_s <= found[0].p99_s


def test_documents_may_have_different_lengths() -> None:
    long, short = (
        play(OURS["quire"], [Load(ADVANCED, [0.0, 9.0], lengths)], Stated(), CORE)[0].mean_s
        for lengths in ((48, 48), (4, 20))
    )
    assert short < long


def test_applications_share_their_engines() -> None:
    both = play(OURS["quire"], [Load(NAIVE, [0.0]), Load(ADVANCED, [0.0])], Stated(), CORE)
    assert both[1].mean_s > alone_s(OURS["quire"], ADVANCED)
    assert all(0 <= share <= 1 for share in both[0].busy.values())


def test_what_is_assumed_can_be_varied() -> None:
    half, double = (alone_s(OURS["quire"], ADVANCED, Stated().scaled(f)) for f in (0.5, 2.0))
    assert half < double
    assert Stated().scaled(2.0).encode_s == Stated().encode_s, "that is of the paper"
    of_paper = Stated().scaled(2.0).models["llama-2-7b"]
    assert of_paper.prefill_s == MODELS["llama-2-7b"].prefill_s
    assert of_paper.step_s == 2 * MODELS["llama-2-7b"].step_s


def test_the_breakdown_adds_up_to_the_query() -> None:
    rows = figures.breakdown(Setting(Stated(), 1, ()), CORE)
    for name, application in APPLICATIONS.items():
        own = [row for row in rows if row["application"] == name]
        seconds = sum(float(str(row["seconds"])) for row in own)
        assert seconds == pytest.approx(alone_s(BASELINES["LlamaDist-TO"], application), abs=0.01)
        assert sum(float(str(row["share"])) for row in own) == pytest.approx(1.0, abs=0.01)


def test_speedups_are_over_each_baseline_at_each_load() -> None:
    setting = Setting(Stated(), 4, (0.5,))
    systems = {name: ALL[name] for name in ("LlamaDist-TO", "AutoGen-TO", "quire")}
    rows = figures.end_to_end(setting, NAIVE, CORE, systems)
    (line,) = figures.speedups(rows)
    means = {row["system"]: float(str(row["mean_s"])) for row in rows}
    assert line["LlamaDist-TO"] == round(means["LlamaDist-TO"] / means["quire"], 2)
    assert "LlamaDist-PO" not in line


@applications
def test_the_way_that_decides_adds_up_to_the_query(application: Application) -> None:
    rows = timeline.way(Setting(Stated(), 1, ()), application, CORE)
    for column, system in timeline.COMPARED.items():
        total_s = sum(float(str(row[column])) for row in rows)
        assert total_s == pytest.approx(alone_s(system, application), abs=0.01)


AHEAD = System("quire", "topology", "ahead")


@applications
def test_a_query_alone_is_not_slower_for_what_runs_ahead(application: Application) -> None:
    plain_s, ahead_s = (alone_s(one, application) for one in (OURS["quire"], AHEAD))
    assert (ahead_s < plain_s) == (application is not NAIVE), "which has nothing to suppose"
    assert ahead_s <= plain_s


def test_what_runs_ahead_is_kept_or_dropped() -> None:
    load = Load(SEARCH, poisson(2.0, 8))
    (found,) = play(AHEAD, [load], Stated(), CORE)
    counts = found.counts
    assert counts.begun == counts.kept + counts.dropped
    assert counts.kept > 0
    assert counts.dropped > 0, "half of the suppositions are wrong"
    (again,) = play(AHEAD, [load], Stated(), CORE)
    assert (again.mean_s, again.counts) == (found.mean_s, counts)


def test_what_queries_wait_for_adds_up_to_their_latency() -> None:
    """Also of queries that did not begin at 0."""
    found = waits.rows(Setting(Stated(), 4, (0.9,)))
    means = {row["policy"]: row["mean_s"] for row in found if row.get("seed") == 0}
    assert list(means) == list(waits.CONTENDERS)
    for policy, mean_s in means.items():
        own = [row for row in found if (row["policy"], row["load"]) == (policy, waits.HEAVY)]
        parts_s = [cast("float", row["s"]) for row in own if "module" in row]
        assert sum(parts_s) == pytest.approx(cast("float", mean_s), abs=0.005)


def test_control_is_told_no_times_of_a_query_without_profiles() -> None:
    stated = Stated()
    made = waits.CONTENDERS["critical_path, no profiles"].queries(
        ADVANCED, World("critical_path", stated, models_of(ADVANCED, CORES[0])), CORES[0]
    )
    primitives = made.graph().e_graph.primitives.values()
    assert {one.remaining_us for one in primitives} == {0}
    assert max(one.depth for one in primitives) > 3


@pytest.mark.parametrize("application", [SEARCH, NAIVE, ADVANCED])
def test_no_query_takes_less_than_the_bound(application: Application) -> None:
    quire_s = alone_s(OURS["quire"], application)
    assert 0.9 * quire_s < bounds.least(Stated(), application, CORE) <= quire_s
