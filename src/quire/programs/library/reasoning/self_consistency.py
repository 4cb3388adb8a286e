"""Self-consistency: sample several chains of thought and take the most frequent answer (Wang 2023).

    quire run self_consistency -- "What is 94820 - 92670?" 7

The question is computed once. Each voice is a fork with its own seed, and all voices run in the
same batches, so five voices take little more time than one. The first voice is greedy: one voice is
plain decoding.

::

    [What is 94][820 - 92][670?        ]     the question, computed once
                          [670? .. -97850]   voice 1, greedy
                          [670? ..   2150]   voice 2, seed 1        2150 has the most votes
                          [670? ..   2150]   voice 3, seed 2
"""

from __future__ import annotations

import asyncio
from typing import Any

from quire.programs.api import Api
from quire.programs.library.answers import GREEDY, Count, commonest, final_answer
from quire.programs.sdk import Context, inferlet, temperature


@inferlet("self_consistency", traits={"Decode": 1, "Tokenize": 1}, restartable=True)
async def self_consistency(
    api: Api, question: str, num_voices: Count = 5, heat: float = 0.8, max_tokens: int = 256
) -> dict[str, Any]:
    """Answer a question by the vote of several chains of thought on one copy of it."""
    samplers = [GREEDY]
    samplers += [temperature(heat, seed=seed) for seed in range(1, num_voices)]
    async with Context(api) as ctx:
        ctx.fill_chat([{"role": "user", "content": question}])
        await ctx.prefill()
        voices = [ctx.fork() for _ in samplers]
        texts = await asyncio.gather(
            *(
                voice.generate_until(max_tokens=max_tokens, sampler=sampler)
                for voice, sampler in zip(voices, samplers, strict=True)
            )
        )
        for voice in voices:
            voice.drop()
    answers = [final_answer(text) for text in texts]
    answer = commonest(answers)
    return {
        "answer": answer,
        "num_votes": answers.count(answer),
        "plain": answers[0],
        "answers": answers,
        "texts": list(texts),
    }
