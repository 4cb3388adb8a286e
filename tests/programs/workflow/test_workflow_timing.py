"""Predicted and measured times of a graph, and how they are drawn."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from workflow_apps import QUERY, advanced

from quire.programs.api.encode import EncoderBatches
from quire.programs.workflow import App, Engine, Graph, Node, PrimitiveStep, Profile
from quire.programs.workflow.passes.note import Note, folded
from quire.programs.workflow.timing import measured, predicted, written

SVG = "{http://www.w3.org/2000/svg}"
PROFILES = {
    "embedding": Profile(10, ((1, 0.5), (10, 2.0))),
    "llm": Profile(times=((1, 0.1), (4096, 0.1)), token_s=0.01),
}


def graph_with(**profiles: Profile) -> Graph:
    app = advanced()
    for name, engine in app.engines.items():
        app.engines[name] = replace(engine, profile=profiles.get(name, Profile(4)))
    config = {"expand": {"max_tokens": 30}, "answer": {"max_tokens": 10}}
    return Graph.optimize(app, QUERY, config)


def test_the_longest_way_is_predicted_with_an_encoder_that_does_one_thing_at_a_time() -> None:
    graph = graph_with(**PROFILES)
    found = predicted(graph.e_graph, graph.app.engines)
    assert found is not None
    assert found.seconds["embed.0"] == 2.0
    assert found.seconds["expand.decode.0"] == pytest.approx(0.1)
    assert "search.0" not in found.seconds, "its engine has no times"
    # 20 chunks in two stages, the queries, which were ready before, and of each of three answers
    # the end of a prompt and ten tokens
    assert found.total_s == pytest.approx(2 * 2.0 + 3 * 0.5 + 3 * (0.1 + 0.1))
    assert {"chunk", "embed.0", "embed.1", "rank"} < set(found.way)
    assert found.way[-1] == "answer.2.decode"
    order = graph.e_graph.order
    assert sorted(found.way, key=order.index)[-1] == found.way[-1]
    p_graph = predicted(graph.p_graph, graph.app.engines)
    assert p_graph is not None
    three_s = 0.5 + 2 / 9 * 1.5
    assert p_graph.total_s == pytest.approx(4.0 + 0.4 + three_s + 3 * 0.2), "one after the other"
    assert predicted(graph_with().e_graph, graph_with().app.engines) is None


def test_what_was_waited_for_is_found_from_the_ends() -> None:
    graph = graph_with().e_graph
    ends = {one: float(place) for place, one in enumerate(graph.order)}
    steps = [PrimitiveStep(graph.primitives[one], end - 0.25, end) for one, end in ends.items()]
    found = measured(graph, steps)
    assert found is not None
    assert found.total_s == len(graph.order) - 1 + 0.25
    assert found.way[0] in ("chunk", "expand.prefill")
    assert found.way[-1] == "answer.2.decode"
    for earlier, later in zip(found.way, found.way[1:], strict=False):
        assert earlier == max(graph.primitives[later].parents, key=ends.__getitem__)
    assert measured(graph, []) is None
    assert [written(one) for one in (2.5, 0.025, 0.00025)] == ["2.50 s", "25 ms", "0.25 ms"]


def test_predicted_and_measured_times_stand_beside_each_other() -> None:
    graph = graph_with(**PROFILES)
    steps = [
        PrimitiveStep(graph.e_graph.primitives[one], 1.0, 1.5)
        for one in graph.e_graph.order
        if one != "answer.1.decode"
    ]
    root = ElementTree.fromstring(graph.explain(steps))
    texts = [one.text or "" for one in root.iter(f"{SVG}text")]
    assert texts.count("predicted 2.00 s · took 500 ms") == 2
    assert "predicted 100 ms · did not run" in texts
    assert any(text.startswith("e-graph") and "took 500 ms" in text for text in texts)
    framed = [one for one in root.iter(f"{SVG}rect") if one.get("stroke-width") == "2"]
    found = (predicted(graph.p_graph, graph.app.engines), measured(graph.e_graph, steps))
    assert len(framed) == sum(len(one.way) for one in found if one is not None)
    plain = ElementTree.fromstring(graph_with().explain())
    assert not any("predicted" in (one.text or "") for one in plain.iter(f"{SVG}text"))


def test_predicted_and_measured_batches_stand_beside_each_other() -> None:
    """There are 20 chunks in batches of ten; each query is in a batch of its own."""
    graph = graph_with(**PROFILES)
    went = {
        "embed.0": EncoderBatches(2, 1), "embed_queries.0": EncoderBatches(1, 1),
        "rank.0": EncoderBatches(0, 0),
    }  # fmt: skip
    steps = [
        PrimitiveStep(graph.e_graph.primitives[one], 1.0, 1.5, batches=went.get(one))
        for one in graph.e_graph.order
    ]
    texts = [one.text or "" for one in ElementTree.fromstring(graph.explain(steps)).iter()]
    assert "0 of 1 batch short · went 1 of 2" in texts
    assert "1 of 1 batch short · went 1 of 1" in texts
    assert "0 of 2 batches short" in texts, "of the p-graph, which has not run"
    assert texts.count("1 of 1 batch short") >= 1, "of the p-graph's queries"
    assert any(text.startswith("Short: batches") for text in texts)


def test_a_graph_without_an_encoder_tells_no_batches() -> None:
    app = App("plain", [Engine("llm")])
    ask = Node(
        "llm", {"question": "text"}, {"answer": "text"}, config={"prompt": "{question}"}, name="ask"
    )
    app.update_template([ask])
    assert "atches" not in Graph.optimize(app, {"question": "Who?"}).explain()


def test_the_same_note_about_several_primitives_is_told_once() -> None:
    same = [Note("prefill", f"ask.{n}.prefill", "why", False) for n in range(3)]
    other = Note("prefill", "other.0.prefill", "why", False)
    assert folded([same[0], other, *same[1:]]) == [
        replace(same[0], where="ask.0.prefill and 2 more"), other
    ]  # fmt: skip
