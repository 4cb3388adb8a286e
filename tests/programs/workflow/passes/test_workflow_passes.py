"""What each pass does to Ayo's advanced RAG, and when it leaves a graph as it is."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from workflow_apps import DOCUMENTS, QUERY, SCHEMA, advanced, engines

from quire.core.errors import InvalidArgument
from quire.programs.workflow import (
    App,
    Engine,
    Graph,
    GraphCache,
    Node,
    OptPass,
    Profile,
    Rewritten,
)
from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.primitives import Op
from quire.programs.workflow.optimizing import fixpoint
from quire.programs.workflow.passes import Profiles


def optimized(*names: str, **answer: Any) -> Graph:
    return Graph.optimize(advanced(**answer), QUERY, passes=OptPass(names))


def ops(graph: PrimitiveGraph) -> dict[str, int]:
    found: dict[str, int] = {}
    for primitive in graph.primitives.values():
        found[str(primitive.op)] = found.get(str(primitive.op), 0) + 1
    return found


def test_the_p_graph_has_the_primitives_of_the_template() -> None:
    graph = optimized().p_graph
    assert ops(graph) == {
        "chunk": 1, "embedding": 2, "ingestion": 1, "prefilling": 4, "decoding": 4,
        "searching": 1, "reranking": 1, "choosing": 1,
    }  # fmt: skip
    expand = graph.primitives["expand.prefill"]
    assert expand.after == {"ingest"}, "the template orders whole components"
    assert [str(part) for part in expand.parts] == ["Write three queries for: ", "{question}"]
    assert graph.primitives["search"].size == 3
    assert graph.primitives["search"].fan == 6
    assert graph.primitives["rank.score"].size == 18
    assert str(graph.results["answer"]) == "answer.2.decode.out"


@pytest.mark.parametrize(("synthesis", "calls"), [("one_shot", 1), ("refine", 3), ("tree", 4)])
def test_synthesis_modes_have_their_numbers_of_calls(synthesis: str, calls: int) -> None:
    graph = optimized(synthesis=synthesis).p_graph
    assert ops(graph)["decoding"] == calls + 1
    chain = [one for one in graph.order if one.startswith("answer") and one.endswith("decode")]
    is_chained = all(one in graph.ancestors[other] for one, other in pairwise(chain))
    assert is_chained == (synthesis != "tree")


def test_what_remains_is_the_longest_way_by_time() -> None:
    app = advanced()
    profiles = {
        "embedding": Profile(4, times=((4, 2.0), (8, 3.0))),
        "llm": Profile(times=((1, 0.5), (1000, 0.5)), token_s=0.25),
    }
    engines = [
        replace(one, profile=profiles.get(one.name, one.profile)) for one in app.engines.values()
    ]
    profiled = App("profiled", engines)
    profiled.update_template(list(app.nodes))
    graph = Graph.optimize(profiled, QUERY, {"answer": {"max_tokens": 8}}).e_graph
    remaining_us = {one.id: one.remaining_us for one in graph.primitives.values()}
    last = graph.primitives["answer.2.decode"]
    assert last.remaining_us == 2_000_000, "eight tokens"
    assert remaining_us["answer.2.prefill"] == 2_500_000
    assert remaining_us["embed.0"] == remaining_us["ingest.0"] + 2_000_000
    numbers = [one.number for one in graph.primitives.values()]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_a_profile_gives_the_time_of_any_size() -> None:
    profile = Profile(times=((4, 2.0), (8, 3.0)))
    assert [profile.seconds(size) for size in (1, 4, 6, 8, 16)] == [2.0, 2.0, 2.5, 3.0, 6.0]
    assert Profile(3).seconds(5) == 0.0


def test_depth_counts_the_primitives_to_a_result() -> None:
    graph = optimized().p_graph
    assert graph.primitives["answer.2.decode"].depth == 0
    assert graph.primitives["answer.0.prefill"].depth == 5
    assert graph.primitives["chunk"].depth == 14


def test_pruning_keeps_the_ingestion_before_the_search_alone() -> None:
    graph = optimized("prune").e_graph
    after = {one.id: set(one.after) for one in graph.primitives.values() if one.after}
    assert after == {"search": {"ingest"}}


def test_stages_are_handed_on_without_pruning() -> None:
    """The order of two components holds piece by piece, unless they work on the same thing."""
    graph = optimized("stages", "pipeline").e_graph
    assert not graph.primitives["ingest.2"].after
    assert graph.primitives["ingest.2"].sources == {"chunk", "embed.2"}
    assert not graph.primitives["embed_queries.1"].after
    ingested = {f"ingest.{number}" for number in range(5)}
    assert graph.primitives["expand.prefill"].after == ingested, "it takes nothing of it"
    assert all(ingested <= graph.ancestors[f"search.{number}"] for number in range(3))


def test_stages_are_as_large_as_the_engine_gains_from_and_are_handed_on() -> None:
    graph = optimized("stages").e_graph
    assert [graph.primitives[f"embed.{n}"].size for n in range(5)] == [4] * 5
    ingest = graph.primitives["ingest.2"]
    assert {name: str(ref) for name, ref in ingest.inputs.items()} == {
        "texts": "chunk.out[8:12]",
        "vectors": "embed.2.out",
    }
    assert ingest.first == 8
    assert "embed.all" not in graph.primitives, "nobody needs all vectors at once"
    assert graph.primitives["expand.prefill"].after == {f"ingest.{n}" for n in range(5)}


def test_a_smaller_stage_behind_a_stage_takes_a_part_of_it() -> None:
    app = advanced()
    app.engines["vectors"] = replace(app.engines["vectors"], profile=Profile(3))
    graph = Graph.optimize(app, QUERY, passes=OptPass(["stages"])).e_graph
    pieces = [graph.primitives[f"ingest.{number}"] for number in range(10)]
    assert [(one.first, one.size) for one in pieces[:4]] == [(0, 3), (3, 1), (4, 3), (7, 1)]
    assert sum(one.size or 0 for one in pieces) == 20
    assert [str(one.inputs["vectors"]) for one in pieces[:4]] == [
        "embed.0.out[0:3]",
        "embed.0.out[3:4]",
        "embed.1.out[0:3]",
        "embed.1.out[3:4]",
    ]


def test_without_a_profile_nothing_is_split_and_the_reason_is_told() -> None:
    app = App("app", engines(None))
    embed = Node("embedding", {"t": "texts"}, {"v": "vectors"}, "batchable", name="embed")
    app.update_template([embed])
    graph = Graph.optimize(app, {"t": ["a"] * 100})
    assert graph.e_graph.primitives.keys() == {"embed"}
    assert [note.text for note in graph.notes] == ["its engine has no profile: one batch"]


@pytest.mark.parametrize(
    ("token_s", "steps"), [(0.1, 3), (0.01, 2), (0.001, 1)], ids=["slow", "quick", "quicker"]
)
def test_a_step_of_a_prompt_saves_what_its_message_takes(token_s: float, steps: int) -> None:
    """A message takes a second; a question is taken to have 32 tokens, a chunk 128, and an answer
    as many as it may have."""
    app = advanced(max_tokens=4)
    times = ((1, 1.0 + token_s), (1000, 1.0 + 1000 * token_s))
    engines = [
        replace(one, profile=Profile(times=times)) if one.name == "llm" else one
        for one in app.engines.values()
    ]
    profiled = App("profiled", engines)
    profiled.update_template(list(app.nodes))
    graph = Graph.optimize(profiled, QUERY, passes=OptPass(["prune", "prefill"]))
    of_last = [one for one in graph.e_graph.order if one.startswith("answer.2.prefill")]
    assert len(of_last) == steps
    note = next(note for note in graph.notes if note.where == "answer.0.prefill")
    assert note.applied == (steps == 3)
    assert note.applied or note.text.startswith("its beginning is short")


def test_an_answer_of_few_tokens_is_no_step() -> None:
    app = advanced(synthesis="tree", max_tokens=4)
    engines = [
        replace(one, profile=Profile(times=((1, 1.0), (101, 2.0)))) if one.name == "llm" else one
        for one in app.engines.values()
    ]
    profiled = App("profiled", engines)
    profiled.update_template(list(app.nodes))
    graph = Graph.optimize(profiled, QUERY, passes=OptPass(["prune", "prefill"])).e_graph
    assert "answer.combine.prefill.0" not in graph.primitives, "the answers come together"


def test_a_prompt_is_prefilled_in_as_many_steps_as_its_parts_come() -> None:
    graph = optimized("prune", "prefill").e_graph
    steps = ["answer.2.prefill.0", "answer.2.prefill.1", "answer.2.prefill"]
    assert ["".join(map(str, graph.primitives[one].parts)) for one in steps] == [
        "The question is {question}. Read ",
        "{best}. So far: ",
        "{answer}",
    ]
    assert graph.primitives[steps[0]].parents == frozenset()
    assert graph.primitives[steps[2]].op is Op.FULL_PREFILLING
    assert "answer.1.decode" in graph.ancestors[steps[2]]
    assert "answer.1.decode" not in graph.ancestors[steps[1]]


def test_without_pruning_a_prompt_waits_as_a_whole() -> None:
    graph = optimized("prefill")
    assert "answer.0.prefill.0" not in graph.e_graph.primitives
    whole = next(note for note in graph.notes if note.where == "answer.0.prefill")
    assert whole.text == "the whole prompt waits for what comes before it"


def test_a_context_before_the_question_is_named_as_the_reason() -> None:
    graph = optimized("prune", "prefill", prompt="Read: {best}\nQuestion: {question}")
    note = next(note for note in graph.notes if note.where == "answer.0.prefill")
    assert not note.applied
    assert (
        note.text
        == "begins with {best}, which is not ready earlier: put {question}, which is, before it"
    )


def test_each_element_of_an_answer_goes_its_own_way() -> None:
    graph = optimized("prune", "pipeline").e_graph
    search = graph.primitives["search.1"]
    assert str(search.inputs["vectors"]) == "embed_queries.1.out"
    assert str(graph.primitives["embed_queries.1"].inputs["texts"]) == "expand.decode.1.out"
    assert "expand.decode.2" not in graph.ancestors["search.1"]
    assert graph.primitives["search.all"].config["spans"] == ((0, 6), (6, 12), (12, 18))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({**SCHEMA, "maxItems": 5}, "minItems and maxItems differ"),
        ({**SCHEMA, "minItems": 1, "maxItems": 1}, "it has one element"),
    ],
)
def test_a_decoding_that_is_not_pipelined_says_why(schema: dict[str, Any], text: str) -> None:
    graph = Graph.optimize(advanced(synthesis="one_shot"), QUERY, {"expand": {"schema": schema}})
    assert ops(graph.e_graph).get("partial decoding", 0) == 0
    assert any(text in note.text for note in graph.notes if note.rule == "pipeline")


def test_figure_6() -> None:
    """Ayo's e-graph of advanced RAG with refine: what the passes give together."""
    graph = Graph.optimize(advanced(), QUERY).e_graph
    assert ops(graph) == {
        "chunk": 1, "embedding": 5 + 3, "ingestion": 5, "prefilling": 1, "partial decoding": 3,
        "searching": 3, "aggregate": 2, "reranking": 3, "choosing": 1, "partial prefilling": 5,
        "full prefilling": 3, "decoding": 3,
    }  # fmt: skip


def test_texts_are_scored_as_each_search_finds_them() -> None:
    graph = Graph.optimize(advanced(), QUERY).e_graph
    scored = graph.primitives["rank.score.1"]
    assert (scored.first, scored.size) == (6, 6)
    assert "search.1" in graph.ancestors["rank.score.1"]
    assert "search.2" not in graph.ancestors["rank.score.1"]
    assert graph.primitives["rank"].sources == {"search.all", "rank.score.all"}


def situated(max_batch: int | None = 4) -> App:
    """A model is asked about each text, a tool joins text and answer, and both are stored."""
    tool = Engine("tool", config={"functions": {"f": lambda texts, said: texts}})
    app = App("situated", [*engines(max_batch), tool])
    ask = Node(
        "llm", {"texts": "texts"}, {"said": "texts"}, "batchable",
        {"prompt": "What is this about? {texts}"}, name="ask",
    )  # fmt: skip
    join = Node(
        "tool", {"texts": "texts", "said": "texts"}, {"joined": "texts"}, "batchable",
        {"function": "f"}, name="join",
    )  # fmt: skip
    embed = Node("embedding", {"joined": "texts"}, {"v": "vectors"}, "batchable", name="embed")
    ingest = Node(
        "vectors", {"joined": "texts", "v": "vectors"}, {"stored": "done"}, "batchable",
        {"operation": "ingest"}, name="ingest",
    )  # fmt: skip
    ask >> join >> embed >> ingest
    app.update_template([ask, join, embed, ingest])
    return app


def calls_before(graph: PrimitiveGraph, one: str) -> list[str]:
    """The calls of ``ask`` that a primitive waits for."""
    return sorted(name for name in graph.ancestors[one] if name.endswith("decode"))


def test_a_batchable_model_makes_a_call_for_each_element() -> None:
    graph = Graph.optimize(situated(), {"texts": ["a", "b", "c"]}).p_graph
    assert ops(graph) == {
        "prefilling": 3, "decoding": 3, "aggregate": 1, "tool": 1, "embedding": 1, "ingestion": 1
    }  # fmt: skip
    assert str(graph.primitives["ask.2.prefill"].inputs["texts"]) == "query.texts[2]"
    assert len(calls_before(graph, "join")) == 3


def test_a_stage_waits_for_the_calls_of_its_own_elements() -> None:
    query = {"texts": [f"t{n}" for n in range(10)]}
    graph = Graph.optimize(situated(), query).e_graph
    wanted = {0: ["0", "1", "2", "3"], 1: ["4", "5", "6", "7"], 2: ["8", "9"]}
    for stage, calls in wanted.items():
        decodes = [f"ask.{number}.decode" for number in calls]
        assert calls_before(graph, f"embed.{stage}") == decodes
        assert calls_before(graph, f"ingest.{stage}") == decodes
    assert calls_before(graph, "join.5") == ["ask.5.decode"]
    assert not {"ask.all", "join.all"} & graph.primitives.keys(), "nobody waits for all"
    assert graph.primitives["ingest.1"].first == 4


def test_without_stages_a_batch_waits_for_all_calls() -> None:
    query = {"texts": ["a", "b", "c", "d", "e"]}
    graph = Graph.optimize(situated(), query, passes=OptPass(["prune", "pipeline"])).e_graph
    assert len(calls_before(graph, "embed")) == 5
    assert calls_before(graph, "join.4") == ["ask.4.decode"]
    free = Graph.optimize(situated(None), query).e_graph
    assert calls_before(free, "ingest.4") == ["ask.4.decode"]


def test_a_pass_of_the_user_runs_with_the_others() -> None:
    def hurried(graph: PrimitiveGraph, profiles: Profiles) -> Rewritten:
        search = graph.primitives.get("search")
        if search is None or search.priority:
            return Rewritten(graph)
        changed = replace(search, priority=1)
        return Rewritten(replace(graph, primitives={**graph.primitives, "search": changed}))

    passes = OptPass(["prune"])
    passes.register("hurried", hurried)
    graph = Graph.optimize(advanced(), QUERY, passes=passes)
    assert graph.e_graph.primitives["search"].priority
    with pytest.raises(InvalidArgument, match="'hurried' is registered already"):
        passes.register("hurried", hurried)
    with pytest.raises(InvalidArgument, match="no pass 'x'; the passes are prune, stages"):
        OptPass(["x"])


def test_a_pass_that_never_stops_or_drops_a_result_is_refused() -> None:
    passes = OptPass([])
    passes.register("endless", lambda graph, _: Rewritten(replace(graph)))
    with pytest.raises(InvalidArgument, match="passes endless still change the graph after 32"):
        Graph.optimize(advanced(), QUERY, passes=passes)
    passes = OptPass([])
    passes.register("mute", lambda graph, _: Rewritten(replace(graph, results={})))
    with pytest.raises(InvalidArgument, match="'mute' changed the results"):
        Graph.optimize(advanced(), QUERY, passes=passes)


def test_a_pass_may_make_four_times_the_primitives_of_a_whole_template(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fixpoint, "MAX_GROWN_PRIMITIVES", 40)

    def padded_to(num: int) -> OptPass:
        def pad(graph: PrimitiveGraph, profiles: Profiles) -> Rewritten:
            missing = num - len(graph.primitives)
            if not missing:
                return Rewritten(graph)
            rank = graph.primitives["rank"]
            copies = {f"rank.{n}": replace(rank, id=f"rank.{n}") for n in range(missing)}
            return Rewritten(replace(graph, primitives={**graph.primitives, **copies}))

        passes = OptPass([])
        passes.register("pad", pad)
        return passes

    assert len(Graph.optimize(advanced(), QUERY, passes=padded_to(40)).e_graph.primitives) == 40
    with pytest.raises(InvalidArgument, match="'pad' made a graph of 41 primitives; at most 40"):
        Graph.optimize(advanced(), QUERY, passes=padded_to(41))


def test_a_graph_is_found_again_by_what_shapes_it() -> None:
    app, cache, passes = advanced(), GraphCache(max_graphs=8), OptPass()
    first = Graph.optimize(app, QUERY, passes=passes, cache=cache)
    other = {**QUERY, "question": "Where?"}
    again = Graph.optimize(app, other, passes=passes, cache=cache)
    assert again.e_graph is first.e_graph
    assert again.query["question"] == "Where?"
    longer = {**QUERY, "documents": DOCUMENTS * 2}
    changes: list[tuple[App, Any, Any, OptPass]] = [
        (app, longer, {}, passes),
        (app, QUERY, {"rank": {"top_n": 2}}, passes),
        (app, QUERY, {}, OptPass(["prune"])),
        (advanced(), QUERY, {}, passes),
    ]
    for changed in changes:
        assert Graph.optimize(*changed, cache=cache).e_graph is not first.e_graph
    assert (cache.num_hits, cache.num_misses) == (1, 5)


def test_a_graph_is_found_again_in_whatever_order_a_query_says_it() -> None:
    app, cache = advanced(), GraphCache()
    changes = {"system": "Be short.", "max_tokens": 40}
    first = Graph.optimize(app, QUERY, {"answer": changes}, cache=cache)
    turned = dict(reversed(changes.items()))
    for num_hits, query in enumerate((dict(reversed(QUERY.items())), QUERY), 1):
        again = Graph.optimize(app, query, {"answer": turned}, cache=cache)
        assert again.e_graph is first.e_graph
        assert (cache.num_hits, cache.num_misses) == (num_hits, 1)


def test_the_cache_is_bounded() -> None:
    app, cache = advanced(), GraphCache(max_graphs=1)
    first = Graph.optimize(app, QUERY, cache=cache).e_graph
    Graph.optimize(app, QUERY, {"rank": {"top_n": 2}}, cache=cache)
    assert Graph.optimize(app, QUERY, cache=cache).e_graph is not first
