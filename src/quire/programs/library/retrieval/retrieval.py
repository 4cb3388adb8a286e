"""Retrieval: answer from the passages that are relevant to the question (Lewis et al., 2020).

    quire run retrieval --encoder DIRECTORY -- "What is the job of Kabo?" \\
        '["The job of Kabo is baker.", "The sky is blue."]' 1 --compare

The node's embedding model computes a vector for every passage and for the question; the passages
with the nearest vectors are candidates. If the node also has a cross-encoder, it scores each
candidate together with the question and ranks them again. The best passages are put before the
question, the most relevant one last, next to it. Embedding, ranking and answering run on the node:
only the answer is sent. Traits: Encode, Decode, Tokenize.

::

    passages ─► embed ─┐
    question ─► embed ─┴─► nearest 4 n ─► rerank ─► best n ─► [Context: ...][Question: ...][answer]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import Annotated, Any

from quire.programs.api import Api
from quire.programs.library.answers import Compare, Count, ask, final_answer, plain_answer
from quire.programs.sdk import inferlet

CANDIDATES = 4
"""Candidates to rank for each passage to read: ranking costs one pass over each."""

Vector = Sequence[float]
Texts = Annotated[list[str], 'The passages, e.g. ["The sky is blue."]']


def cosine(one: Vector, other: Vector) -> float:
    """The cosine similarity of two vectors; 0 if one of them is zero."""
    length = math.sqrt(sum(map(mul, one, one)) * sum(map(mul, other, other)))
    return sum(map(mul, one, other)) / length if length else 0.0


def best_of(scores: Sequence[float], num: int) -> list[int]:
    """The indices of the ``num`` highest scores, best first; of equal scores the first."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])[:num]


class Passages:
    """Texts with their vectors: ``await Passages.of(api, texts)``."""

    def __init__(self, api: Api, texts: Sequence[str], vectors: Sequence[Vector]) -> None:
        self._api = api
        self.texts = list(texts)
        self._vectors = vectors

    @classmethod
    async def of(cls, api: Api, texts: Sequence[str]) -> Passages:
        return cls(api, texts, await api.embed(texts, truncate=True))

    async def nearest(self, question: str, num: int) -> list[int]:
        """The indices of the passages that are most similar to ``question``, best first."""
        (asked,) = await self._api.embed([question])
        return best_of([cosine(asked, vector) for vector in self._vectors], num)

    async def relevant(self, question: str, num: int) -> list[int]:
        """``nearest``, ranked again by a cross-encoder if the node has one."""
        if "cross_encoder" not in {one.kind for one in await self._api.available_encoders()}:
            return await self.nearest(question, num)
        candidates = await self.nearest(question, CANDIDATES * num)
        texts = [self.texts[index] for index in candidates]
        scores = await self._api.rerank(question, texts, truncate=True)
        return [candidates[place] for place in best_of(scores, num)]


@inferlet("retrieval", traits={"Encode": 1, "Decode": 1, "Tokenize": 1}, restartable=True)
async def retrieval(
    api: Api, question: str, passages: Texts, num_read: Count = 3, *, compare: Compare = False
) -> dict[str, Any]:
    """Answer a question from the relevant passages of a JSON list."""
    found = await (await Passages.of(api, passages)).relevant(question, num_read)
    context = " ".join(passages[index] for index in reversed(found))
    reply = await ask(api, f"Context: {context}\nQuestion: {question}")
    return {
        "answer": final_answer(reply) or reply,
        "read": found,
        "num_passages": len(passages),
        **await plain_answer(api, question, compare),
    }
