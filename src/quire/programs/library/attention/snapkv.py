r"""SnapKV: the attention of a prompt's end predicts what the answer needs (Li et al., 2024).

    quire run snapkv -- "The age of Kabo is 31. The age of Lima is 9. The age of Nuru is 55.
    The age of Zita is 7. What is the age of Nuru?" 3 --compare

The last tokens of the prompt, the observation window, are run in a forward pass that returns their
attention to each earlier page. The pages with the most attention are kept, the others are freed,
once; then the answer is an ordinary ``generate`` on the remaining pages. Pages have the effect of
the paper's pooling: neighbours of an important token are kept with it. With a budget of all pages
it is greedy decoding. Traits: Scores, OutputText, Decode.

::

    page      [ 0  ][ 1  ][ 2  ][ 3  ][window]
    share      2.9   0.1   0.2   1.4              budget 3: pages 0 and 3, and the window's
    kept      [ 0  ]            [ 3  ][window][answer ...
"""

from __future__ import annotations

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.library.answers import Compare, plain_text
from quire.programs.sdk import Context, inferlet


async def compress(ctx: Context, *, budget: int, window: int = 8) -> list[int]:
    """Evict pages of the prompt in ``ctx`` until ``budget`` are left; return the indices of the
    kept ones.

    The pages of the last ``window`` tokens are always kept. The next token is filled.

    Raises:
        InvalidArgument: the window's pages exceed the budget.
    """
    size, window = ctx.model.page_size, min(window, len(ctx))
    first = (len(ctx) - window) // size
    recent = range(first, -(-len(ctx) // size))
    if window < 1 or len(recent) > budget:
        raise InvalidArgument(
            f"a window of {window} tokens has {len(recent)} pages, the budget is {budget}: choose "
            "a window of at least one token and a budget that holds it"
        )
    step = await ctx.next_dists_scored(window)
    old = sorted(range(first), key=lambda page: (-step.masses[page], page))
    num_kept = budget - len(recent)
    for page in old[num_kept:]:
        ctx.evict(page * size, (page + 1) * size)
    ctx.fill([step.dists[-1].max_index()])
    return [*sorted(old[:num_kept]), *recent]


@inferlet("snapkv", traits={"Scores": 1, "Decode": 1, "Tokenize": 1}, restartable=True)
async def snapkv(
    api: Api,
    question: str,
    budget: int = 4,
    max_tokens: int = 64,
    window: int = 8,
    *,
    compare: Compare = False,
) -> dict[str, object]:
    """Answer with the pages of the prompt to which its last tokens attend most."""
    async with Context(api) as ctx:
        start = len(ctx.fill_chat([{"role": "user", "content": question}]))
        compared = await plain_text(ctx, max_tokens, compare)
        kept = await compress(ctx, budget=budget, window=window)
        if ctx.tokens[-1] not in ctx.model.eos_token_ids and max_tokens > 1:
            await ctx.generate(max_tokens=max_tokens - 1)
        return {
            "text": api.detokenize(ctx.tokens[start:], skip_special=True),
            "kept_pages": kept,
            "num_pages_of_prompt": -(-start // ctx.model.page_size),
            **compared,
        }
