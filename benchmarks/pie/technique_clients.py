"""Implements the library's techniques as clients of an OpenAI-compatible server, where a client can
do them.

Each gets a model at a distance and the program's arguments, and returns its result in the form of
the program's answer. The logic is the library's own, over ``RemoteContext``; a fork is a separate
request with the whole preceding text. Two techniques are impossible over that interface: an
attention sink (the closest is to resend the first and the last tokens for every token, which
changes their positions) and the check of several guessed tokens in one pass (plain decoding gives
the same tokens).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import cast

from benchmarks.pie.remote_context import RemoteContext, RemoteModel
from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.library.agents.react import react_loop
from quire.programs.library.answers import GREEDY, final_answer
from quire.programs.library.decoding.beam_search import search_beams
from quire.programs.library.decoding.ebnf_decoding import ADDITION
from quire.programs.library.reasoning.graph_of_thought import HEAT, ThoughtGraph
from quire.programs.library.reasoning.inverse_check import inverse
from quire.programs.library.reasoning.recursion_of_thought import Recursion
from quire.programs.library.reasoning.skeleton_of_thought import points_of
from quire.programs.library.reasoning.tree_of_thought import text_of, tree_search
from quire.programs.sdk import Context, temperature

Args = Sequence[str]
Client = Callable[[RemoteModel, Sequence[int], Args], Awaitable[str]]
"""``(model, prompt, args)``: the prompt is the program's conversation as tokens."""
_NOWHERE = cast("Api", None)
"""For the library's classes, whose every use of the node is overridden here."""


def _context(model: RemoteModel, prompt: Sequence[int]) -> Context:
    """A ``Context`` with the operations that the techniques below use."""
    return cast("Context", RemoteContext(model, prompt))


async def _undoes(model: RemoteModel, question: str, answer: str) -> bool:
    undone = inverse(question, answer)
    if undone is None:
        return False
    problem, expected = undone
    return final_answer(await model.ask(f"What is {problem}?")) == expected


async def tree_of_thought(model: RemoteModel, prompt: Sequence[int], args: Args) -> str:
    question, breadth, branching, depth = args

    async def check(text: str) -> bool:
        return await _undoes(model, question, final_answer(text))

    best = await tree_search(
        _context(model, prompt),
        breadth=int(breadth),
        branching=int(branching),
        depth=int(depth),
        check=check,
    )
    return "" if best is None else final_answer(text_of(best))


class _RemoteRecursion(Recursion):
    def __init__(self, model: RemoteModel) -> None:
        super().__init__(_NOWHERE)
        self._model = model

    async def _asked(self, problem: str) -> int:
        return int(final_answer(await self._model.ask(f"What is {problem}?")))


async def recursion_of_thought(model: RemoteModel, prompt: Sequence[int], args: Args) -> str:
    recursion = _RemoteRecursion(model)

    async def deeper(problem: str) -> str:
        return str(await recursion.solve(problem))

    return (await react_loop(_context(model, prompt), {"calc": deeper})).answer


class _RemoteGraph(ThoughtGraph):
    def __init__(self, model: RemoteModel, num_candidates: int) -> None:
        super().__init__(_NOWHERE, num_candidates)
        self._model = model

    async def _generate(self, problem: str, seed: int) -> int | None:
        sampler = GREEDY if seed == 0 else temperature(HEAT, seed=seed)
        answer = final_answer(await self._model.ask(f"What is {problem}?", sampler=sampler))
        try:
            return int(answer)
        except ValueError:
            return None

    async def _score(self, problem: str, answer: int) -> float:
        return float(await _undoes(self._model, problem, str(answer)))


async def graph_of_thought(model: RemoteModel, prompt: Sequence[int], args: Args) -> str:
    amounts, num_candidates = args
    numbers = [int(amount) for amount in amounts.split()]
    graph = _RemoteGraph(model, int(num_candidates))
    incoming, outgoing = await asyncio.gather(
        graph.aggregate([number for number in numbers if number >= 0]),
        graph.aggregate([-number for number in numbers if number < 0]),
    )
    return str(await graph.best(f"{incoming} - {outgoing}") if outgoing else incoming)


async def skeleton_of_thought(model: RemoteModel, prompt: Sequence[int], args: Args) -> str:
    question, expand, common, max_tokens = args
    points = points_of(await model.ask(question, max_tokens=int(max_tokens)))
    if not points:
        raise InvalidArgument("the model's outline has no numbered points")
    asked = [
        model.ask(expand.replace("{point}", point), system=common, max_tokens=int(max_tokens))
        for point in points
    ]
    return "\n".join(await asyncio.gather(*asked))


async def beam_search(model: RemoteModel, prompt: Sequence[int], args: Args) -> str:
    _, width, max_tokens = args
    found = await search_beams(_context(model, prompt), int(width), int(max_tokens))
    return model.tokenizer.decode(found[0].tokens, skip_special=True)


async def ebnf_decoding(model: RemoteModel, prompt: Sequence[int], args: Args) -> str:
    question, _, max_tokens = args
    return await model.ask(
        question, max_tokens=int(max_tokens), structured_outputs={"grammar": ADDITION}
    )


async def plain_decoding(model: RemoteModel, prompt: Sequence[int], args: Args) -> str:
    return await model.ask(args[0], max_tokens=int(args[1]))


async def resent_window(model: RemoteModel, prompt: Sequence[int], args: Args) -> str:
    """Send one request per token with the sinks and the window, whose K is computed anew."""
    _, max_tokens, num_sinks, window = args
    tokens, sinks = list(prompt), int(num_sinks)
    for _ in range(int(max_tokens)):
        seen = [*tokens[:sinks], *tokens[max(sinks, len(tokens) - int(window)) :]]
        choice = await model.complete(seen, max_tokens=1, temperature=0)
        tokens += choice["token_ids"]
        if tokens[-1] in model.eos_token_ids:
            break
    return model.tokenizer.decode(tokens[len(prompt) :], skip_special=True)


CLIENTS: Mapping[str, Client] = MappingProxyType(
    {
        one.__name__: one
        for one in (
            tree_of_thought,
            recursion_of_thought,
            graph_of_thought,
            skeleton_of_thought,
            resent_window,
            beam_search,
            ebnf_decoding,
            plain_decoding,
        )
    }
)
