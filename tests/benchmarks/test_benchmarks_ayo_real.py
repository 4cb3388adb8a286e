"""Queries over real engines: what is configured exists, and the contenders differ in their graphs
alone."""

from __future__ import annotations

import ast
from argparse import Namespace

import pytest

from benchmarks.ayo.real import CONFIG, PASSES, TEMPLATE, Spent, application, query, row_of
from benchmarks.ayo.real_llama_index import TOP_K, TOP_N
from benchmarks.report import ROOT
from quire.programs.chat.template import ChatTemplate
from quire.programs.workflow import Graph, OptPass

ARGUMENTS = Namespace(pages=2, seed=0)
names = pytest.mark.parametrize("name", CONFIG)


def graph(name: str, contender: str) -> Graph:
    passes = OptPass(PASSES[contender])
    return Graph.optimize(application(name), query(name, ARGUMENTS, 1), CONFIG[name], passes)


@names
def test_the_chain_is_one_module_after_the_other(name: str) -> None:
    """No two components of it may be at work at the same time."""
    chain = graph(name, "chain").e_graph
    primitives = chain.primitives
    for one in primitives:
        for other in primitives:
            if primitives[one].node == primitives[other].node:
                continue
            assert one in chain.ancestors[other] or other in chain.ancestors[one], (one, other)


@names
def test_the_contenders_have_other_graphs_of_the_same_query(name: str) -> None:
    chain, quire = graph(name, "chain"), graph(name, "quire")
    assert chain.query == quire.query
    assert set(chain.e_graph.primitives) != set(quire.e_graph.primitives)
    assert {one.node for one in chain.e_graph.primitives.values()} == {
        one.node for one in quire.e_graph.primitives.values()
    }


def test_the_parallel_one_has_the_modules_of_the_chain_without_their_order() -> None:
    chain, parallel = (graph("advanced-rag", one).e_graph for one in ("chain", "parallel"))
    assert set(chain.primitives) == set(parallel.primitives)
    (expand,) = (one.id for one in parallel.primitives.values() if one.id == "expand.prefill")
    assert not parallel.ancestors[expand]
    assert chain.ancestors[expand]


def test_ratios_are_within_a_round() -> None:
    spent = {
        "chain": [Spent(4.0, 1.0, 2.0), Spent(9.0, 1.2, 2.2)],
        "parallel": [Spent(3.0, 1.0, 2.0), Spent(6.0, 1.0, 2.0)],
        "quire": [Spent(2.0, 1.0, 2.0), Spent(3.0, 1.0, 2.0)],
    }
    row = row_of("advanced-rag", spent)
    assert row["over chain"].median == pytest.approx(2.5)
    assert row["over parallel"].median == pytest.approx(1.75)
    assert row["chain, models' processor s"].median == pytest.approx(1.1)


def test_a_prompt_that_goes_on_is_the_beginning_of_the_whole_one() -> None:
    template = ChatTemplate(TEMPLATE)
    begun = template.render(
        [{"role": "user", "content": "Question: Who"}],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    whole = template.render(
        [{"role": "user", "content": "Question: Who is it?"}], add_generation_prompt=True
    )
    assert whole.startswith(begun)
    assert whole.endswith("<assistant>\n")


def test_llama_index_has_the_prompts_and_numbers_of_the_applications() -> None:
    """Its script runs in another environment, so its text is read."""
    tree = ast.parse((ROOT / "benchmarks" / "peers" / "llama_index_rag.py").read_text())
    prompts = {
        one.targets[0].id: ast.literal_eval(one.value.args[0])
        for one in tree.body
        if isinstance(one, ast.Assign)
        and isinstance(one.targets[0], ast.Name)
        and isinstance(one.value, ast.Call)
    }
    for name, top_k in TOP_K.items():
        config = {node.name: node.config for node in application(name).nodes}
        answer, chunk = config["answer"], config["chunk"]
        parts = {"question": "{query_str}", "answer": "{existing_answer}"}
        ask = answer["prompt"].format(**parts, context="{context_str}")
        refine = answer["refine_prompt"].format(**parts, context="{context_msg}")
        assert prompts == {"ASK": ask, "REFINE": refine}
        assert top_k == config["search"]["top_k"]
        assert (chunk["chunk_size"], chunk["overlap"]) == (256, 30)
    assert config["expand"]["prompt"] == "Write 3 search queries for: {question}"
    assert CONFIG["advanced-rag"]["rank"]["top_n"] == TOP_N
