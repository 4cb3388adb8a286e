r"""Heavy hitters: keep the pages with the most attention (H2O, Zhang et al., 2023).

    quire run heavy_hitters -- "The age of Kabo is 31. The age of Lima is 9. The age of Nuru is 55.
    The age of Zita is 7. What is the age of Nuru?" 3 --compare

A few tokens get most of the attention, and continue to get it. Every step returns the attention of
its token to each page (``next_dists_scored``). These masses are added up, and while there are more
pages than the budget allows, the page with the smallest sum is evicted. The last pages are kept,
because they have not had time to collect attention. The paper evicts single tokens of each head;
here pages are evicted, because only pages can be freed. With a budget of all pages it is greedy
decoding. Traits: Scores, OutputText.

::

    page      [ 0  ][ 1  ][ 2  ][ 3  ][ 4  ]
    sum        9.1   0.8   3.2   0.3   0.9      budget 4, one recent page
    evicted                      ^              the smallest sum that is not recent
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence

from quire.core.decoding import Dist
from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.library.answers import Compare, plain_text
from quire.programs.sdk import Context, ends, inferlet

NUM_PIECE_TOKENS = 64


async def heavy_hitter_steps(
    ctx: Context, prompt: Sequence[int], max_tokens: int, *, budget: int, num_recent: int = 1
) -> AsyncIterator[Dist]:
    """``steps`` after ``prompt`` with at most ``budget`` pages, ``num_recent`` of them the last
    ones.

    As in the paper, the whole prompt is computed before anything is evicted.

    Raises:
        InvalidArgument: no recent page, or no room for another page.
    """
    if not 1 <= num_recent < budget:
        raise InvalidArgument(
            f"a budget of {budget} pages with {num_recent} recent ones: choose at least one recent "
            "page and a larger budget"
        )
    size, sums = ctx.model.page_size, Counter[int]()

    def evict() -> None:
        while ctx.num_pages > budget:
            old = [page for page in sums if page <= (len(ctx) - 1) // size - num_recent]
            least = min(old, key=lambda page: (sums[page], page))
            ctx.evict(least * size, (least + 1) * size)
            del sums[least]

    for start in range(0, len(prompt), NUM_PIECE_TOKENS):
        piece = prompt[start : start + NUM_PIECE_TOKENS]
        step = await ctx.fill(piece).next_dists_scored(len(piece))
        sums.update(step.masses)
    start = len(ctx)
    while len(ctx) - start < max_tokens and not ends(ctx, start):
        if len(ctx) > start:
            step = await ctx.next_dists_scored(1)
            sums.update(step.masses)
        evict()
        yield step.dists[-1]


@inferlet("heavy_hitters", traits={"Scores": 1, "OutputText": 1, "Tokenize": 1}, restartable=True)
async def heavy_hitters(
    api: Api, question: str, budget: int = 4, max_tokens: int = 64, *, compare: Compare = False
) -> dict[str, object]:
    """Answer greedily within a budget of pages, keeping those with the most attention."""
    async with Context(api) as ctx:
        prompt = ctx.fill_chat([{"role": "user", "content": question}]).tokens
        compared = await plain_text(ctx, max_tokens, compare)
        ctx.truncate(0)
        async for dist in heavy_hitter_steps(ctx, prompt, max_tokens, budget=budget):
            ctx.fill([dist.max_index()])
        return {
            "text": api.detokenize(ctx.tokens[len(prompt) :], skip_special=True),
            "num_pages": ctx.num_pages,
            "num_pages_of_all": -(-len(ctx) // ctx.model.page_size),
            **compared,
        }
