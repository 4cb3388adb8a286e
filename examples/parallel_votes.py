"""Self-consistency: fork a question, sample several answers, return the most frequent one.

    quire run examples/parallel_votes.py -- "What is 48213 + 977?" 5

The question is prefilled once; each fork samples with its own seed, all in the same batches.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from quire.programs.api import Api
from quire.programs.sdk import Context, inferlet, temperature


@inferlet("parallel_votes")
async def parallel_votes(api: Api, question: str, num_votes: str = "5") -> dict[str, Any]:
    """Answer a question by vote."""
    async with Context(api) as ctx:
        ctx.fill_chat([{"role": "user", "content": question}])
        await ctx.prefill()
        forks = [ctx.fork() for _ in range(int(num_votes))]
        texts = await asyncio.gather(
            *(
                fork.generate_until(max_tokens=150, sampler=temperature(0.8, seed=seed))
                for seed, fork in enumerate(forks)
            )
        )
        for fork in forks:
            fork.drop()
    votes = Counter(text.rpartition("Answer:")[2].strip() for text in texts)
    return {"answer": votes.most_common(1)[0][0], "votes": dict(votes)}
