"""Parallel generation: fork one prompt, continue it several ways at once, join the results (Pie
Table 2).

    quire run parallel_generation -- "<|bos|><|user|>Context: The age of Kabo is 31. The age of Lima
    is 9. The age of Nuru is 55. The age of Zita is 7. Question: What is the age of" \\
        " Kabo?<|end|><|assistant|>" " Lima?<|end|><|assistant|>" " Nuru?<|end|><|assistant|>"

The prompt is computed once. Each branch has its own queue, so the scheduler batches them.

::

    [Two ][colors ][are    ]
                   [are red]                fork: full pages are shared,
                   [are blu][e   ]          the page that is written is copied
"""

from __future__ import annotations

import asyncio

from quire.programs.api import Api
from quire.programs.sdk import Context, inferlet


@inferlet("parallel_generation", traits={"Decode": 1, "Tokenize": 1}, restartable=True)
async def parallel_generation(api: Api, prompt: str, *branches: str) -> dict[str, object]:
    """Continue ``prompt`` after each branch. Returns the texts, separate and joined, and the pages
    that this took, and would have taken without forks."""
    ctx = Context(api).fill(prompt)
    await ctx.prefill()
    forks = [ctx.fork().fill(branch) for branch in branches]
    texts = await asyncio.gather(*(fork.generate_until(max_tokens=24, stop="\n") for fork in forks))
    num_pages_unshared = sum(fork.num_pages for fork in forks)
    num_pages = ctx.num_pages + sum(fork.num_own_pages for fork in forks)
    ctx.join(*forks)
    return {
        "texts": list(texts),
        "joined": ctx.text,
        "num_pages": num_pages,
        "num_pages_unshared": num_pages_unshared,
    }
