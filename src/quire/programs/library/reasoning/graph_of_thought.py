"""Graph of thoughts: split a problem, solve the parts, score, and merge (Besta 2024; Pie Table 2).

    quire run graph_of_thought -- "4821 967 -1330 55 -208 7104" --compare

The program computes the balance of an account from amounts that come in and go out. The graph
splits them into incomings and outgoings, and each of these into pairs. Every vertex is generated
several times (the first time greedily) and scored by the model itself, which inverts the answer in
a separate context; the best candidate is kept. Then parts are merged in pairs until one number is
left of each, and the outgoings are subtracted. All vertices of a layer run concurrently. With one
part there is nothing to merge, and with one candidate nothing to choose.

::

    4821   967     55   7104          1330   208      split
       └─┬──┘       └─┬──┘               └─┬──┘
       5788         7159                 1538         solve: generate, score, keep the best
          └─────┬────┘                     │
              12947                        │          merge
                 └────────── 11409 ────────┘
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.library.answers import GREEDY, Compare, Count, ask, final_answer, plain_answer
from quire.programs.library.reasoning.inverse_check import undoes
from quire.programs.sdk import inferlet, temperature

HEAT = 0.8


@dataclass(frozen=True, slots=True)
class Vertex:
    """One thought of the graph: a part's value, and the problem that gave it."""

    problem: str
    value: int
    score: float


class ThoughtGraph:
    """The operations of the paper's section 3.2 over sums: generate, score, keep best, aggregate.

    ``num_candidates``: how often each thought is generated.
    """

    def __init__(self, api: Api, num_candidates: int) -> None:
        self._api = api
        self._num_candidates = num_candidates

    async def best(self, problem: str) -> Vertex:
        """Generate and score candidates; return the best."""
        candidates = await asyncio.gather(
            *(self._generate(problem, seed) for seed in range(self._num_candidates))
        )
        answers = list(dict.fromkeys(answer for answer in candidates if answer is not None))
        if not answers:
            raise InvalidArgument(f"the model gave no number for {problem!r}")
        scores = await asyncio.gather(*(self._score(problem, answer) for answer in answers))
        score, value = max(zip(scores, answers, strict=True), key=lambda scored: scored[0])
        return Vertex(problem, value, score)

    async def aggregate(self, values: list[int]) -> tuple[int, list[Vertex]]:
        """The sum of values that are not negative, and the vertices of its computation.

        Pairs are added concurrently, layer by layer. The order of the vertices does not depend on
        which of them is done first.
        """
        vertices: list[Vertex] = []
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=False)
            odd = values[-1:] if len(values) % 2 else []
            merged = await asyncio.gather(*(self.best(f"{a} + {b}") for a, b in pairs))
            vertices += merged
            values = [*(vertex.value for vertex in merged), *odd]
        return values[0] if values else 0, vertices

    async def _generate(self, problem: str, seed: int) -> int | None:
        sampler = GREEDY if seed == 0 else temperature(HEAT, seed=seed)
        answer = final_answer(await ask(self._api, f"What is {problem}?", sampler=sampler))
        try:
            return int(answer)
        except ValueError:
            return None

    async def _score(self, problem: str, answer: int) -> float:
        return float(await undoes(self._api, problem, str(answer)))


def in_one_sum(numbers: list[int]) -> str:
    """``4821 - 1330`` for the amounts 4821 and -1330."""
    text = " ".join(f"{'-' if number < 0 else '+'} {abs(number)}" for number in numbers)
    return text.removeprefix("+ ")


@inferlet("graph_of_thought", traits={"Decode": 1, "Tokenize": 1}, restartable=True)
async def graph_of_thought(
    api: Api, amounts: str, num_candidates: Count = 2, *, compare: Compare = False
) -> dict[str, Any]:
    """Subtract outgoings from incomings: split, solve the parts, merge."""
    numbers = [int(amount) for amount in amounts.replace(",", " ").split()]
    graph = ThoughtGraph(api, num_candidates)
    (incoming, added), (outgoing, spent) = await asyncio.gather(
        graph.aggregate([number for number in numbers if number >= 0]),
        graph.aggregate([-number for number in numbers if number < 0]),
    )
    merged = [await graph.best(f"{incoming} - {outgoing}")] if outgoing else []
    vertices = [*added, *spent, *merged]
    balance = merged[0].value if merged else incoming
    return {
        "answer": str(balance),
        "vertices": [f"{vertex.problem} = {vertex.value}" for vertex in vertices],
        "num_unsure": sum(vertex.score < 1 for vertex in vertices),
        **await plain_answer(api, f"What is {in_one_sum(numbers)}?", compare),
    }
