"""Output validation: check the text while it is written, and take back what is wrong.

    quire run output_validation -- "Who are you?" "language|large" --compare

The answer is generated in pieces of one page. After each piece a check examines the text. If it
fails, the context goes back to the last valid page and draws another piece, at increasing
temperature; if several fail, it goes back one more page. Valid text is never computed again. ReLM
validates a model's output by regular expressions (Kuchnik et al., 2023; Pie Table 2). The check of
your own program may be one, or any other function; the shipped program takes only words from a
client, because Python's regular expressions can take years for a line of text, and the whole node
would wait. Traits: Decode, Allocate (truncate).

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
"""Whether an incomplete text is still acceptable."""


@dataclass(frozen=True, slots=True)
class ValidatedText:
    """A text and the result of its checks. ``num_rejected``: pieces that were taken back.
    ``is_valid``: whether the text has passed its check."""

    text: str
    tokens: list[int]
    num_rejected: int
    is_valid: bool


async def generate_validated(
    ctx: Context, check: Check, max_tokens: int, *, max_rejected: int = 16
) -> ValidatedText:
    """Continue ``ctx`` in pieces that pass ``check``; the first try of each piece is greedy.

    After ``max_rejected`` rejected pieces it returns the valid text so far.
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
            return ValidatedText(_text(ctx, start), list(ctx.tokens[start:]), num_rejected, False)
        if num_tries % 4 == 0:  # the mistake may be in the preceding page
            ctx.truncate(max(start, good - size))
    return ValidatedText(_text(ctx, start), list(ctx.tokens[start:]), num_rejected, True)


def _text(ctx: Context, start: int) -> str:
    return ctx.model.tokenizer.decode(ctx.tokens[start:], skip_special=True)


@inferlet("output_validation", traits={"Decode": 1, "Tokenize": 1}, restartable=True)
async def output_validation(
    api: Api, question: str, forbidden: str, max_tokens: int = 64, *, compare: Compare = False
) -> dict[str, object]:
    """Answer without any of the words between ``|``, in upper or lower case, and count the pieces
    that were taken back."""
    words = [word for word in forbidden.casefold().split("|") if word]
    if not words:
        raise InvalidArgument(f"{forbidden[:80]!r} forbids nothing: give words separated by |")

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
