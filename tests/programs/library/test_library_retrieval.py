"""Retrieval with the shipped model: what is read, and whether the answer is right.

The encoders are fakes that count words, which tells facts about different people apart.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from programs_facts import FACTS, node_with

from quire.core.errors import QuireError, TraitMissing
from quire.core.ids import TenantId
from quire.node import Node
from quire.programs.library import find
from quire.programs.library.retrieval.retrieval import best_of, cosine
from quire.testing import FakeEncoder

TENANT = TenantId("default")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    node = node_with(
        embedder=FakeEncoder(dimensions=128), ranker=FakeEncoder("cross_encoder", max_tokens=64)
    )
    await node.start()
    yield node
    await node.stop()


async def asked(node: Node, question: str, *args: str) -> dict[str, Any]:
    program = find("retrieval")
    given = args or (json.dumps(FACTS.passages), "3")
    result: dict[str, Any] = await node.launch(program, (question, *given), tenant=TENANT).result()
    return result


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="module")
async def test_questions_are_answered_from_what_was_found(node: Node) -> None:
    right = 0
    for question, (place, answer) in FACTS.questions.items():
        result = await asked(node, question)
        assert result["read"][0] == place, question
        assert len(result["read"]) == 3
        right += result["answer"].rstrip(".") == answer
    assert right >= 0.9 * len(FACTS.questions)


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="module")
async def test_the_answer_comes_from_the_passage_and_not_from_the_model(node: Node) -> None:
    question = next(iter(FACTS.questions))
    place, _ = FACTS.questions[question]
    others = [one for index, one in enumerate(FACTS.passages) if index != place]
    for value in ("51", "63"):
        changed = [*others, f"{FACTS.passages[place].rpartition(' is ')[0]} is {value}."]
        result = await asked(node, question, json.dumps(changed), "1")
        assert result == {
            "answer": value,
            "read": [len(others)],
            "num_passages": len(changed),
        }


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("passages", ['"text"', "[1]", "{}", "[]"])
async def test_what_is_no_list_of_texts_is_refused(node: Node, passages: str) -> None:
    with pytest.raises(QuireError, match=r"passages .* e\.g\. \[|0 texts"):
        await asked(node, "Who?", passages)


@pytest.mark.e2e
@pytest.mark.timeout(300)
async def test_an_embedding_model_is_enough_and_none_is_too_little() -> None:
    node = node_with(embedder=FakeEncoder(dimensions=128))
    await node.start()
    try:
        for question, (place, _) in list(FACTS.questions.items())[:4]:
            assert (await asked(node, question))["read"][0] == place
    finally:
        await node.stop()
    node = node_with()
    await node.start()
    try:
        with pytest.raises(TraitMissing, match="no encoder: serve one with --encoder"):
            await asked(node, "Who?")
    finally:
        await node.stop()


def test_nearness_and_order() -> None:
    assert cosine([1, 0], [2, 0]) == 1
    assert cosine([1, 0], [0, 3]) == 0
    assert cosine([0, 0], [1, 1]) == 0
    assert cosine([1, 1], [-1, -1]) == pytest.approx(-1)
    assert best_of([0.1, 0.7, 0.7, 0.9], 3) == [3, 1, 2]
    assert best_of([0.1], 3) == [0]
