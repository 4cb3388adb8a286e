"""Parallel generation: fork one prompt, go several ways at once, join what came out (Pie Table 2).

    quire run parallel_generation -- "Two colors are" " red and" " blue and"

The prompt is computed once. Each branch has a queue of its own, so the scheduler batches them.

::

    [Two ][colors ][are    ]
                   [are red]                fork: full pages are shared,
                   [are blu][e   ]          the page that is written is copied
"""

from __future__ import annotations

import asyncio

from quire.programs.api import Api
from quire.programs.sdk import Context, inferlet


@inferlet("parallel_generation", traits={"Decode": 1, "Tokenize": 1})
async def parallel_generation(api: Api, prompt: str, *branches: str) -> dict[str, object]:
    """Continue ``prompt`` once behind each branch; the texts, and all of them joined."""
    ctx = Context(api).fill(prompt)
    await ctx.prefill()
    forks = [ctx.fork().fill(branch) for branch in branches]
    texts = await asyncio.gather(*(fork.generate_until(max_tokens=24, stop="\n") for fork in forks))
    ctx.join(*forks)
    return {"texts": list(texts), "joined": ctx.text}
