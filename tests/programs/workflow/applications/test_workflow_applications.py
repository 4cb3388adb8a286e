"""The shipped applications with the shipped model: naive and advanced RAG answer from documents."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from programs_facts import FACTS, node_with

from quire.core.errors import InvalidArgument, ProgramFailed
from quire.core.ids import TenantId
from quire.node import SHIPPED_READER, Node
from quire.programs.workflow import Graph, OptPass, find_application, workflow
from quire.programs.workflow.applications import agent
from quire.programs.workflow.applications.contextual_retrieval import before
from quire.testing import FakeEncoder

TENANT = TenantId("default")
DOCUMENTS = [{"name": "people.md", "text": "\n".join(FACTS.passages)}]
RAG = ("naive-rag", "advanced-rag")
SMALL = {"chunk": {"chunk_size": 7, "overlap": 0}}
"""A chunk is one fact."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    node = node_with(
        SHIPPED_READER,
        embedder=FakeEncoder(dimensions=128),
        ranker=FakeEncoder("cross_encoder", max_tokens=64),
    )
    await node.start()
    yield node
    await node.stop()


async def asked(
    node: Node, name: str, question: str, config: Any = SMALL, passes: OptPass | None = None
) -> str:
    query = {"question": question, "documents": DOCUMENTS}
    program = workflow(find_application(name), passes)
    handle = node.launch(program, (json.dumps(query), json.dumps(config)), tenant=TENANT)
    result = await handle.result()
    assert handle.record().form == "workflow"
    assert result.keys() == {"answer"}
    answer: str = result["answer"]
    return answer.rstrip(".")


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="module")
async def test_naive_rag_answers_from_the_documents(node: Node) -> None:
    questions = list(FACTS.questions.items())[:8]
    answers = [await asked(node, "naive-rag", question) for question, _ in questions]
    right = [answer == wanted for answer, (_, (_, wanted)) in zip(answers, questions, strict=True)]
    assert sum(right) >= 7
    plain = await asked(node, "naive-rag", questions[0][0], passes=OptPass([]))
    assert plain == answers[0]


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", RAG)
async def test_each_mode_of_synthesis_answers(node: Node, name: str) -> None:
    question, (_, wanted) = next(iter(FACTS.questions.items()))
    for mode in ("one_shot", "refine"):
        config = {**SMALL, "answer": {"synthesis": mode}}
        assert await asked(node, name, question, config) == wanted, mode


@pytest.mark.parametrize("name", [*RAG, "contextual-retrieval"])
def test_texts_that_are_read_together_end_with_the_nearest(name: str) -> None:
    query = {
        "question": "Who?",
        "documents": [{"name": "a.md", "text": " ".join(f"word{n}" for n in range(900))}],
    }
    config = {"answer": {"synthesis": "one_shot"}}
    graph = Graph.optimize(find_application(name), query, config, passes=OptPass([])).e_graph
    parts = [part.name for part in graph.primitives["answer.prefill"].parts if part.name]
    assert parts == ["question", "context.2", "context.1", "context.0", "question"]


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", RAG)
async def test_what_runs_ahead_on_a_node_changes_no_answer(node: Node, name: str) -> None:
    question, (_, wanted) = next(iter(FACTS.questions.items()))
    assert await asked(node, name, question, passes=OptPass().speculating()) == wanted


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_query_that_cannot_run_says_why(node: Node) -> None:
    with pytest.raises(ProgramFailed, match="chunk: chunk_size is 0: give 1 or more"):
        await asked(node, "naive-rag", "Who?", {"chunk": {"chunk_size": 0}})
    with pytest.raises(ProgramFailed, match=r"answer: the prompt ends at .* context has 4096 pos"):
        await asked(node, "naive-rag", "Who? " * 1500)


@pytest.mark.e2e
@pytest.mark.timeout(300)
async def test_what_the_node_lacks_is_told_before_any_work() -> None:
    node = node_with(embedder=FakeEncoder(dimensions=128))
    await node.start()
    try:
        with pytest.raises(
            ProgramFailed,
            match=r"'rerank' needs a model of kind cross encoder, and the node has embedder "
            r"\(embedding\): load one with --encoder SOURCE, a directory or hub id such as cross-",
        ):
            await asked(node, "advanced-rag", "Who?")
        assert sum(row.row.num_prefilled_tokens for row in node.processes(TENANT)) == 0
    finally:
        await node.stop()


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="module")
async def test_the_agent_calls_a_tool_and_answers_from_its_result(node: Node) -> None:
    def get_time(city: str) -> dict[str, str]:
        return {"time": "14:05"}

    program = workflow(agent([get_time]))
    query = json.dumps({"question": "What time is it in Paris?"})
    result = await node.launch(program, (query,), tenant=TENANT).result()
    assert result == {"answer": "It is 14:05 in Paris."}


def test_an_unknown_application_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InvalidArgument, match=r"no workflow 'naive_rag' \(did you mean naive-rag"):
        find_application("naive_rag")


@pytest.mark.parametrize("name", RAG)
def test_an_application_has_the_papers_configuration(name: str) -> None:
    query = {"question": "Who?", "documents": [{"name": "a.md", "text": "word " * 2000}]}
    graph = Graph.optimize(find_application(name), query)
    assert graph.sizes["chunks"] == 9, "chunks of 256 that share 30"
    notes = {(note.rule, note.where) for note in graph.notes if note.applied}
    asked_first = "expand.prefill" if name == "advanced-rag" else "embed_question"
    assert ("prune", asked_first) in notes
    svg = graph.explain()
    assert svg.startswith("<svg")
    assert "e-graph" in svg


def test_a_context_stands_before_its_chunk() -> None:
    assert before(["About Lin. ", " "], ["She sings.", "He bakes."]) == [
        "About Lin.\nShe sings.", "He bakes."
    ]  # fmt: skip
    query = {"question": "Who?", "documents": [{"name": "a.md", "text": "word " * 2000}]}
    graph = Graph.optimize(find_application("contextual-retrieval"), query).e_graph
    assert graph.primitives["search"].fan == 9, "32, but there are nine"
    situated = {one.engine for one in graph.primitives.values() if one.node == "situate"}
    assert situated == {"light"}, "joined call by call"
    assert {"situate.8.decode", "join.8"} <= graph.ancestors["ingest"]
    assert "situate.8.decode" not in graph.ancestors["join.7"]
    assert graph.primitives["rank"].config["top_n"] == 3
