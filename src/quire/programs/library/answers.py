"""What several programs of the library share: a bounded argument, asking in a context of its own,
reading answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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


def final_answer(text: str) -> str:
    """What stands behind the last ``Answer:``, nothing if it does not occur."""
    _, mark, answer = text.rpartition("Answer:")
    return answer.strip() if mark else ""


def commonest(answers: Iterable[str]) -> str:
    """The answer that was given most often, the earliest of those; nothing if none was given."""
    votes = Counter(answer for answer in answers if answer)
    return votes.most_common(1)[0][0] if votes else ""


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
