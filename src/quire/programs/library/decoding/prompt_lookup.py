"""Speculative decoding by prompt lookup: guess what stood behind the same words (Saxena, 2023).

    quire run prompt_lookup -- "The job of Kabo is baker. What is the job of Kabo?"

The last few tokens are looked up in the text so far; what followed them there is the guess. One
forward pass checks the whole guess (``verify``), as far as it is right it is kept, and the tokens
are those of greedy decoding in fewer steps. Traits: Forward, OutputText, Allocate (truncate).

::

    text      ... the job of Kabo is baker ...     the job of Kabo
    guess                                          is  baker  .         looked up behind `of Kabo`
    forward                                        is  baker  ,         two are right, and the one
                                                                        behind them is gained
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.programs.api import Api
from quire.programs.sdk import Context, ends, inferlet, verify


def lookup(tokens: Sequence[int], num_guessed: int, max_ngram: int = 3) -> list[int]:
    """What followed the latest earlier occurrence of the last tokens, the longest match first."""
    for length in range(min(max_ngram, len(tokens) - 1), 0, -1):
        suffix = tuple(tokens[-length:])
        for start in range(len(tokens) - length - 1, -1, -1):
            if tuple(tokens[start : start + length]) == suffix:
                return list(tokens[start + length : start + length + num_guessed])
    return []


async def generate_by_lookup(
    ctx: Context, max_tokens: int, *, num_guessed: int = 8, max_ngram: int = 3
) -> tuple[list[int], int]:
    """The greedy continuation, and in how many forward passes it was made."""
    start, num_passes = len(ctx), 0
    while len(ctx) - start < max_tokens and not ends(ctx, start):
        guess = lookup(ctx.tokens, num_guessed, max_ngram)
        await verify(ctx, guess, max_tokens - (len(ctx) - start))
        num_passes += 1
    return list(ctx.tokens[start:]), num_passes


@inferlet("prompt_lookup", traits={"Decode": 1, "OutputText": 1, "Tokenize": 1})
async def prompt_lookup(
    api: Api, question: str, max_tokens: str = "64", num_guessed: str = "8"
) -> dict[str, object]:
    """Answer greedily in fewer steps, guessing from the text so far."""
    async with Context(api) as ctx:
        ctx.fill_chat([{"role": "user", "content": question}])
        tokens, num_passes = await generate_by_lookup(
            ctx, int(max_tokens), num_guessed=int(num_guessed)
        )
    return {
        "text": api.detokenize(tokens, skip_special=True),
        "num_tokens": len(tokens),
        "num_forward_passes": num_passes,
    }


__all__ = ["generate_by_lookup", "lookup", "prompt_lookup"]
