"""Skeleton of thought: an outline first, then all of its points at once (Ning 2024; Pie Table 2).

    quire run skeleton_of_thought -- "List 3 cities." "What is the weather in {point}?" \\
        --common "Functions: get_weather(city: string)"

The outline is one short generation. Its numbered points are then expanded in separate contexts, all
in the same batches: the answer takes the time of the outline and of the longest point instead of
the sum of all points. The common beginning of the points' prompts (such as documents or functions,
given as ``common``) is computed once, and the points are forks of it. An outline of one point is
two plain generations.

::

    question ─► 1. Oslo  2. Lima  3. Cairo              the outline
    [common][begin- ]─┬─[ning][Oslo? ][it is]
                      ├─[ning][Lima? ][it is]           the points: forks, side by side
                      └─[ning][Cairo?][it is]
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.chat import chat_template
from quire.programs.library.answers import ask
from quire.programs.sdk import Context, Generated, inferlet

MAX_EXPAND_CHARS = 4096
EXPAND = "{question}\nWrite one or two sentences about this point: {point}"
_POINT = re.compile(r"^\s*\d+[.)]\s+(.+?)\s*$", re.MULTILINE)


def points_of(outline: str) -> list[str]:
    """The texts of the lines ``1. text``, in order."""
    return _POINT.findall(outline)


async def side_by_side(
    api: Api, conversations: Sequence[Sequence[Mapping[str, Any]]], max_tokens: int
) -> tuple[list[Generated], int]:
    """The replies to several conversations, and the number of tokens in their common beginning,
    which is computed once."""
    template = chat_template(api.available_models()[0].served)
    prompts = [api.tokenize(template.render(messages)) for messages in conversations]
    same = takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))
    # each fork runs at least one token itself
    num_common = min(sum(1 for _ in same), min(map(len, prompts)) - 1)
    async with Context(api) as common:
        common.fill(prompts[0][:num_common])
        await common.prefill()
        forks = [common.fork().fill(prompt[num_common:]) for prompt in prompts]
        replies = await asyncio.gather(*(fork.generate(max_tokens=max_tokens) for fork in forks))
        for fork in forks:
            fork.drop()
    return list(replies), num_common


@inferlet(
    "skeleton_of_thought", traits={"Decode": 1, "Messaging": 1, "Tokenize": 1}, restartable=True
)
async def skeleton_of_thought(
    api: Api,
    question: str = "List the steps to make tea.",
    expand: str = EXPAND,
    common: str = "",
    max_tokens: int = 128,
) -> dict[str, Any]:
    """Outline an answer, then expand all points concurrently, and count the steps of the model, and
    those without concurrency.

    ``expand``: the question for each point, with ``{question}``, ``{point}`` and ``{number}``.
    ``common``: a system text for the points.
    """
    if len(expand) > MAX_EXPAND_CHARS:
        raise InvalidArgument(
            f"expand has {len(expand)} characters, and its placeholders are replaced by whole "
            f"texts: give at most {MAX_EXPAND_CHARS} characters"
        )
    outline = await ask(api, question, max_tokens=max_tokens)
    points = points_of(outline)
    if not points:
        raise InvalidArgument(
            f"the model's outline has no numbered points: {outline!r}; ask for a list"
        )
    await api.send(outline)
    system = [{"role": "system", "content": common}] if common else []
    prompts = [
        expand.replace("{question}", question)
        .replace("{number}", str(number))
        .replace("{point}", point)
        for number, point in enumerate(points, 1)
    ]
    replies, num_shared = await side_by_side(
        api, [[*system, {"role": "user", "content": prompt}] for prompt in prompts], max_tokens
    )
    lengths = [len(reply.token_ids) for reply in replies]
    texts = [reply.text for reply in replies]
    return {
        "points": points,
        "texts": texts,
        "answer": "\n".join(texts),
        "num_steps": max(lengths),
        "num_steps_one_by_one": sum(lengths),
        "num_prompt_tokens_shared": num_shared,
    }
