"""Jacobi decoding: guess a block of tokens and let the model correct it (Santilli et al., 2023).

    quire run jacobi_decoding -- "What is 48 + 17?" 64 8

Greedy decoding solves ``y[i] = argmax p(y[i] | y[<i])``, one equation after another; Jacobi's
method solves a block of them at once. Every pass computes all tokens of the block from the last
guess. The first token is then right, and often several: these are kept, and the others, moved up,
are the next guess. The fixed point is greedy decoding, token for token. Traits: Decode (the
prompt), OutputText, Allocate (truncate).

::

    guess     ? ? ? ?
    pass 1    a x y z          a is right, since it follows the text alone
    pass 2      b c z          b and c follow what was right: two tokens from one pass
"""

from __future__ import annotations

from quire.programs.api import Api
from quire.programs.library.answers import Count
from quire.programs.sdk import Context, ends, inferlet, verify


async def jacobi(ctx: Context, max_tokens: int, *, block: int = 8) -> tuple[list[int], int]:
    """The greedy continuation, and the number of forward passes that computed it."""
    start, num_passes = len(ctx), 0
    guess: list[int] = []
    while len(ctx) - start < max_tokens and not ends(ctx, start):
        guess = (guess + [ctx.tokens[-1]] * block)[:block]
        verified = await verify(ctx, guess, max_tokens - (len(ctx) - start))
        guess = verified.rest
        num_passes += 1
    return list(ctx.tokens[start:]), num_passes


@inferlet("jacobi_decoding", traits={"Decode": 1, "OutputText": 1, "Tokenize": 1}, restartable=True)
async def jacobi_decoding(
    api: Api, question: str, max_tokens: int = 64, block: Count = 8
) -> dict[str, object]:
    """Answer greedily in fewer steps, by correcting guesses of whole blocks."""
    async with Context(api) as ctx:
        ctx.fill_chat([{"role": "user", "content": question}])
        tokens, num_passes = await jacobi(ctx, max_tokens, block=block)
    return {
        "text": api.detokenize(tokens, skip_special=True),
        "num_tokens": len(tokens),
        "num_forward_passes": num_passes,
    }
