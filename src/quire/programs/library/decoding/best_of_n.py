"""Best of n: several answers, of which the model's most likely one is returned.

    quire run best_of_n -- "Write a story." 5 1.2 32 --compare

The prompt is computed once and forked; every answer is drawn with its own seed, and all of them run
concurrently. The score is the mean log probability of an answer's tokens, which does not prefer
short answers. One answer at temperature 0 is greedy decoding. Traits: Decode, Allocate.

::

    prompt [p0][p1][p2] ─┬─ answer 1   -0.21
                         ├─ answer 2   -0.07   ◄ the best
                         └─ answer 3   -0.55         full pages of the prompt are held once
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.library.answers import Compare, Count, plain_text
from quire.programs.sdk import Context, Generated, inferlet, temperature


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    generated: Generated
    score: float


async def answers(
    ctx: Context, num: int, max_tokens: int, *, heat: float, seed: int = 0
) -> list[ScoredAnswer]:
    """``num`` continuations of ``ctx``, best first. ``heat``: the temperature at which they are
    drawn.

    Raises:
        InvalidArgument: fewer than one answer.
    """
    if num < 1:
        raise InvalidArgument(f"the best of {num} answers: ask for at least one")
    await ctx.prefill()
    forks = [ctx.fork() for _ in range(num)]
    generations = [
        fork.generate(
            max_tokens=max_tokens, sampler=temperature(heat, seed=seed + index), num_logprobs=0
        )
        for index, fork in enumerate(forks)
    ]
    generated = await asyncio.gather(*generations)
    for fork in forks:
        fork.drop()
    return sorted(
        (ScoredAnswer(one, mean_log_prob(one)) for one in generated), key=lambda a: -a.score
    )


def mean_log_prob(generated: Generated) -> float:
    log_probs = [entry.logprob for entry in generated.logprobs or ()]
    return sum(log_probs) / max(len(log_probs), 1)


@inferlet("best_of_n", traits={"Decode": 1, "Tokenize": 1}, restartable=True)
async def best_of_n(
    api: Api,
    question: str,
    num: Count = 5,
    heat: float = 0.8,
    max_tokens: int = 64,
    *,
    compare: Compare = False,
) -> dict[str, object]:
    """Answer several times and return the most likely answer, and all answers with their scores."""
    async with Context(api) as ctx:
        ctx.fill_chat([{"role": "user", "content": question}])
        compared = await plain_text(ctx, max_tokens, compare)
        found = await answers(ctx, num, max_tokens, heat=heat)
    return {
        "text": found[0].generated.text,
        "all": [{"text": one.generated.text, "score": round(one.score, 4)} for one in found],
        **compared,
    }
