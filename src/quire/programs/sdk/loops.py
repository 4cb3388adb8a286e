"""Loops over a context's next distributions, for programs that choose every token themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from quire.core.decoding import Dist
from quire.programs.sdk.context import Context
from quire.programs.sdk.page_span import Sees


async def steps(
    ctx: Context, max_tokens: int, *, top_k: int = 256, sees: Sees | None = None
) -> AsyncIterator[Dist]:
    """The next distribution, then the one after the tokens that the loop's body has filled, and so
    on.

    Ends after an end token, after ``max_tokens`` tokens, or when the model's context is full::

        async for dist in steps(ctx, max_tokens=64):
            ctx.fill([dist.max_index()])
    """
    start = len(ctx)
    end = min(start + max_tokens, ctx.model.max_tokens)
    while len(ctx) < end and not ends(ctx, start):
        yield await ctx.next_dist(top_k=top_k, sees=sees)


def ends(ctx: Context, start: int) -> bool:
    """Whether the context has grown beyond ``start`` and its last token is an end token."""
    return len(ctx) > start and ctx.tokens[-1] in ctx.model.eos_token_ids


@dataclass(frozen=True, slots=True)
class Verified:
    """``tokens``: the appended tokens. ``rest``: the greedy tokens after the remaining tokens of
    the guess, from its first wrong token on."""

    tokens: list[int]
    num_accepted: int
    rest: list[int]


async def verify(ctx: Context, guess: Sequence[int], max_tokens: int) -> Verified:
    """Append the part of ``guess`` that greedy decoding confirms, and one more token, with one
    forward pass (Leviathan et al., 2023: the greedy case of speculative decoding).

    The appended tokens are those of greedy decoding, whatever the guess; a wrong guess costs its
    computation, an empty one makes this a plain step. Appends at most ``max_tokens`` tokens, and
    none after an end token.
    """
    start, ends_with = len(ctx), ctx.model.eos_token_ids
    room = min(max_tokens, ctx.model.max_tokens - start) - 1
    guess = list(guess[: max(room, 0)])
    ctx.fill(guess)
    dists = await ctx.next_dists(len(guess) + 1, top_k=1)
    said = [dist.max_index() for dist in dists]
    num = 0
    while num < len(guess) and guess[num] == said[num] and said[num] not in ends_with:
        num += 1
    ctx.truncate(start + num)
    ctx.fill([said[num]])
    return Verified(said[: num + 1], num, said[num + 1 :])
