r"""Prefix caching: a long beginning that many prompts share is computed once (Pie Table 2).

    quire run prefix_caching -- "You are a helpful assistant. You answer in one short sentence." \
        "Hello!" "Who are you?"

It is automatic: full pages of plain text enter the prefix index when they are full, and any program
of the tenant that begins with the same tokens maps them. This program shows the figures. A program
that wants to name and keep such a prefix itself exports it (``Context.export``).

::

    first     [You are][a help][ful ...][Hello!   ]      computed
    second    [You are][a help][ful ...][Who are y]      three pages found, one computed
"""

from __future__ import annotations

from typing import Any

from quire.programs.api import Api
from quire.programs.sdk import Context, inferlet


@inferlet("prefix_caching", traits={"Decode": 1, "Tokenize": 1}, restartable=True)
async def prefix_caching(api: Api, prefix: str, *questions: str) -> list[dict[str, Any]]:
    """Answer questions after one prefix, and count the tokens of each that came from the cache."""
    answers = []
    for question in questions:
        messages = [{"role": "system", "content": prefix}, {"role": "user", "content": question}]
        async with Context(api) as ctx:
            ctx.fill_chat(messages)
            generated = await ctx.generate(max_tokens=32)
            answers.append(
                {
                    "question": question,
                    "answer": generated.text,
                    "num_prompt_tokens": len(ctx) - len(generated.token_ids),
                    "num_cached_tokens": generated.num_cached_tokens,
                }
            )
    return answers
