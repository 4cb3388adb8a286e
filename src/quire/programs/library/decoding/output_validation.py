"""Output validation: check what was written as it is written, and take back what is wrong.

    quire run output_validation -- "Who are you?" "language|large" --compare

The answer is made in pieces of a page. After each one a check looks at the text; if it fails, the
context goes back to the last good page and draws another piece, from the most likely to ever more
varied ones; if none is good, it goes back a page further. Nothing that was right is computed again.
Validating a model's output by regular expressions is ReLM's idea (Kuchnik et al., 2023; Pie Table
2). The check of a program of your own may be one, or anything else; from a client the shipped
program takes words only, because Python's regular expressions can take years for a line of text,
and the whole node would wait. Traits: Decode, Allocate (truncate).

::

    [prompt][good   ][bad    ]            check fails
    [prompt][good   ]                     truncate: the pages before stay as they are
    [prompt][good   ][another]            drawn with another seed
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.library.answers import Compare, plain_text
from quire.programs.sdk import Context, ends, greedy, inferlet, temperature

Check = Callable[[str], bool]
"""Whether a text, which may go on, is still acceptable."""


@dataclass(frozen=True, slots=True)
class Validated:
    """``num_rejected`` pieces were taken back. ``is_valid``: the text passed its check."""

    text: str
    tokens: list[int]
    num_rejected: int
    is_valid: bool


async def generate_validated(
    ctx: Context, check: Check, max_tokens: int, *, max_rejected: int = 16
) -> Validated:
    """Go on with ``ctx`` in pieces that pass ``check``, greedily where the first try does.

    After ``max_rejected`` pieces it gives up, with what is good so far.
    """
    start, size = len(ctx), ctx.model.page_size
    num_rejected = num_tries = 0
    while len(ctx) - start < max_tokens and not ends(ctx, start):
        piece = min(size - len(ctx) % size, max_tokens - (len(ctx) - start))
        good = len(ctx)
        sampler = temperature(0.7 + 0.1 * num_tries, seed=num_rejected) if num_tries else greedy()
        await ctx.generate(max_tokens=piece, sampler=sampler)
        if check(_text(ctx, start)):
            num_tries = 0
            continue
        ctx.truncate(good)
        num_rejected += 1
        num_tries += 1
        if num_rejected == max_rejected:
            return Validated(_text(ctx, start), list(ctx.tokens[start:]), num_rejected, False)
        if num_tries % 4 == 0:  # perhaps the mistake was made before
            ctx.truncate(max(start, good - size))
    return Validated(_text(ctx, start), list(ctx.tokens[start:]), num_rejected, True)


def _text(ctx: Context, start: int) -> str:
    return ctx.model.tokenizer.decode(ctx.tokens[start:], skip_special=True)


@inferlet("output_validation", traits={"Decode": 1, "Tokenize": 1})
async def output_validation(
    api: Api, question: str, forbidden: str, max_tokens: int = 64, *, compare: Compare = False
) -> dict[str, object]:
    """Answer without any of the words between ``|``, in whatever case; how many pieces were taken
    back."""
    words = [word for word in forbidden.casefold().split("|") if word]
    if not words:
        raise InvalidArgument(f"{forbidden[:80]!r} forbids nothing: give words, with | between")

    def check(text: str) -> bool:
        folded = text.casefold()
        return not any(word in folded for word in words)

    async with Context(api) as ctx:
        ctx.fill_chat([{"role": "user", "content": question}])
        compared = await plain_text(ctx, max_tokens, compare)
        result = await generate_validated(ctx, check, max_tokens)
    return {
        "text": result.text,
        "is_valid": result.is_valid,
        "num_rejected": result.num_rejected,
        **compared,
    }
