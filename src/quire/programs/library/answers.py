"""What several programs of the library share: bounded arguments, asking in a context of its own,
reading answers, the plain decoding that a technique is compared with.
"""

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
"""Contexts side by side, guesses of a step: far more than a technique gains from."""
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)]
"""An argument that says how many: shipped programs run in the node, and whoever may launch one must
not fill it."""


Compare = Annotated[bool, "Whether to tell what plain greedy decoding says too."]


@dataclass(frozen=True, slots=True)
class Plain:
    """What greedy decoding says where a technique goes another way. ``mean_logprob``: of its
    tokens."""

    tokens: tuple[int, ...]
    text: str
    mean_logprob: float


async def plain(ctx: Context, max_tokens: int) -> Plain:
    """Greedy decoding behind the text of ``ctx``, on a fork: ``ctx`` stays as it is."""
    async with ctx.fork() as fork:
        generated = await fork.generate(max_tokens=max_tokens, num_logprobs=0)
    logprobs = [entry.logprob for entry in generated.logprobs or ()]
    mean = sum(logprobs) / max(len(logprobs), 1)
    return Plain(generated.token_ids, generated.text, mean)


async def plain_text(ctx: Context, max_tokens: int, compare: bool) -> dict[str, object]:
    """What a program adds to its result: ``plain``, the text of greedy decoding, if it was asked
    to ``compare``."""
    return {"plain": (await plain(ctx, max_tokens)).text} if compare else {}


def final_answer(text: str) -> str:
    """What stands behind the last ``Answer:``, nothing if it does not occur."""
    _, mark, answer = text.rpartition("Answer:")
    return answer.strip() if mark else ""


def commonest(answers: Iterable[str]) -> str:
    """The answer that was given most often, the earliest of those; nothing if none was given."""
    votes = Counter(answer for answer in answers if answer)
    return votes.most_common(1)[0][0] if votes else ""


async def plain_answer(api: Api, question: str, compare: bool) -> dict[str, object]:
    """``plain_text`` of a question that is asked by itself: what stands behind ``Answer:``, or all
    that was said."""
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
    """The model's reply to one question, its reasoning left out, in a context that is dropped
    afterwards.

    What the context begins with is found in the prefix cache, if anyone has asked like this before.
    """
    messages: Sequence[Mapping[str, Any]] = [{"role": "user", "content": question}]
    if system:
        messages = [{"role": "system", "content": system}, *messages]
    async with Context(api) as ctx:
        answering = Conversation(ctx, messages).answer(max_tokens=max_tokens, sampler=sampler)
        return (await answering).content
