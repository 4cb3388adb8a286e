"""Windowed attention: every token attends to the last few only (Beltagy et al., 2020; Pie Table 2).

    quire run windowed_attention -- "The sky is blue. The grass is green. The snow is white.
    The age of Nuru is 55. The age of Lima is 9. The age of Kabo is 31. What is the age of Kabo?" \\
        16 24 --compare

The prompt is computed in pieces under a mask (``next_dist(sees=...)``); then each step evicts the
token that has left the window. A page of which all tokens have left it returns to the pool, so
memory is bounded for any length of text. K keeps its rotation, because positions increase. Traits:
Forward (masks on calls and on pages), OutputText.

::

    window 4      key   0 1 2 3 4 5 6 7
    query 4             . # # # #
    query 7             . . . . # # # #       . hidden or given back
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from quire.core.decoding import Dist
from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.library.answers import Compare, plain_text
from quire.programs.sdk import Context, inferlet, steps

NUM_PIECE_TOKENS = 32


async def windowed_steps(
    ctx: Context, prompt: Sequence[int], max_tokens: int, *, window: int, num_sinks: int = 0
) -> AsyncIterator[Dist]:
    """``steps`` after ``prompt``, with attention to the last ``window`` tokens, the current one
    included, and to the first ``num_sinks``.

    Raises:
        InvalidArgument: a window of less than two tokens, or a negative number of sinks.
    """
    if window < 2 or num_sinks < 0:
        raise InvalidArgument(
            f"window {window}, {num_sinks} sinks: choose a window of 2 or more tokens and 0 or "
            "more sinks"
        )

    def sees(query: int, key: int) -> bool:
        return key < num_sinks or query - key < window

    def slide() -> None:  # tokens to which the next token does not attend
        if len(ctx) - window + 1 > num_sinks:
            ctx.evict(num_sinks, len(ctx) - window + 1)

    for start in range(0, len(prompt) - 1, NUM_PIECE_TOKENS):
        ctx.fill(prompt[start : min(start + NUM_PIECE_TOKENS, len(prompt) - 1)])
        await ctx.next_dist(sees=sees, top_k=1)
        slide()
    ctx.fill(prompt[-1:])
    async for dist in steps(ctx, max_tokens):
        slide()
        yield dist


async def windowed_answer(
    api: Api, question: str, max_tokens: int, *, window: int, num_sinks: int, compare: bool
) -> dict[str, object]:
    async with Context(api) as ctx:
        prompt = ctx.fill_chat([{"role": "user", "content": question}]).tokens
        compared = await plain_text(ctx, max_tokens, compare)
        ctx.truncate(0)
        most_pages = 0
        async for dist in windowed_steps(
            ctx, prompt, max_tokens, window=window, num_sinks=num_sinks
        ):
            most_pages = max(most_pages, ctx.num_pages)
            ctx.fill([dist.max_index()])
        return {
            "text": api.detokenize(ctx.tokens[len(prompt) :], skip_special=True),
            "num_tokens": len(ctx),
            "most_pages_while_generating": most_pages,
            "pages_without_window": -(-len(ctx) // ctx.model.page_size),
            **compared,
        }


@inferlet("windowed_attention", traits={"OutputText": 1, "Tokenize": 1}, restartable=True)
async def windowed_attention(
    api: Api, question: str, max_tokens: int = 64, window: int = 48, *, compare: Compare = False
) -> dict[str, object]:
    """Answer greedily with attention to the last tokens only, and count the pages that this
    takes."""
    return await windowed_answer(
        api, question, max_tokens, window=window, num_sinks=0, compare=compare
    )
