"""Functions that several programs of the library share: bounded arguments, questions in separate
contexts, parsing of answers, and the plain decoding to which a technique is compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from quire.core.decoding import SamplerSpec
from quire.programs.api import Api
from quire.programs.sdk import Context, Conversation, greedy

GREEDY = greedy()

MAX_COUNT = 1024
"""Concurrent contexts, or guesses of one step: far more than any technique benefits from."""
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)]
"""An argument that is a number of things. It is bounded, because shipped programs run in the node
and anyone who may launch one must not exhaust it."""


Compare = Annotated[bool, "Whether to return the output of plain greedy decoding, too."]


@dataclass(frozen=True, slots=True)
class GreedyAnswer:
    """The output of greedy decoding, for comparison with a technique. ``mean_logprob``: the mean
    over its tokens."""

    tokens: tuple[int, ...]
    text: str
    mean_logprob: float


async def plain(ctx: Context, max_tokens: int) -> GreedyAnswer:
    """Greedy decoding after the text of ``ctx``, in a fork: ``ctx`` does not change."""
    async with ctx.fork() as fork:
        generated = await fork.generate(max_tokens=max_tokens, num_logprobs=0)
    logprobs = [entry.logprob for entry in generated.logprobs or ()]
    mean = sum(logprobs) / max(len(logprobs), 1)
    return GreedyAnswer(generated.token_ids, generated.text, mean)


async def plain_text(ctx: Context, max_tokens: int, compare: bool) -> dict[str, object]:
    """An entry for a program's result: ``plain``, the text of greedy decoding, if ``compare`` is
    true."""
    return {"plain": (await plain(ctx, max_tokens)).text} if compare else {}


def final_answer(text: str) -> str:
    """The text after the last ``Answer:``; empty if it does not occur."""
    _, mark, answer = text.rpartition("Answer:")
    return answer.strip() if mark else ""


def commonest(answers: Iterable[str]) -> str:
    """The most frequent answer, of equals the earliest; empty if there are no answers."""
    votes = Counter(answer for answer in answers if answer)
    return votes.most_common(1)[0][0] if votes else ""


async def plain_answer(api: Api, question: str, compare: bool) -> dict[str, object]:
    """``plain_text`` for a separate question: the text after ``Answer:``, or the whole reply."""
    if not compare:
        return {}
    reply = await ask(api, question)
    return {"plain": final_answer(reply) or reply}


async def ask(
    api: Api,
    question: str,
    *,
    system: str = "",
    sampler: SamplerSpec = GREEDY,
    max_tokens: int = 256,
) -> str:
    """The model's reply to one question, without its reasoning, in a context that is dropped
    afterwards.

    The beginning of the context is found in the prefix index if it was computed before.
    """
    messages: Sequence[Mapping[str, Any]] = [{"role": "user", "content": question}]
    if system:
        messages = [{"role": "system", "content": system}, *messages]
    async with Context(api) as ctx:
        answering = Conversation(ctx, messages).answer(max_tokens=max_tokens, sampler=sampler)
        return (await answering).content
