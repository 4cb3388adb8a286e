"""Context-aware decoding: prefer the given text to the model's memory (Shi et al., 2024).

    quire run context_aware_decoding -- "The capital of France is Lima." \\
        "What is the capital of France?" 32 1.0 --compare

The same question is computed with and without the text. The text's effect is amplified: the token
with the highest ``(1 + alpha) log p(with) - alpha log p(without)`` is chosen, so that the model's
memory does not outweigh the text. ``alpha`` 0 is greedy decoding. The two contexts are stepped
together in one batch. Traits: Decode (the prompt), OutputText.

::

    with       [text][question] ► p1 ┐
                                     ├─► (1 + a) log p1 - a log p2 ─► token, to both
    without          [question] ► p2 ┘
"""

from __future__ import annotations

import asyncio

from quire.programs.api import Api
from quire.programs.library.answers import Compare, plain_text
from quire.programs.library.decoding.contrastive_decoding import contrast
from quire.programs.sdk import Context, ends, inferlet
from quire.programs.sdk.dists import best, log_probs


async def generate_aware(
    informed: Context, ignorant: Context, max_tokens: int, *, alpha: float
) -> list[int]:
    """Continue ``informed``, away from the predictions of ``ignorant``; both get the tokens."""
    start = len(informed)
    while len(informed) - start < max_tokens and not ends(informed, start):
        one, other = await asyncio.gather(informed.next_dist(), ignorant.next_dist())
        token = best(contrast(log_probs(one), log_probs(other), alpha=0.0, beta=alpha))
        informed.fill([token])
        ignorant.fill([token])
    return list(informed.tokens[start:])


@inferlet(
    "context_aware_decoding", traits={"Decode": 1, "OutputText": 1, "Tokenize": 1}, restartable=True
)
async def context_aware_decoding(
    api: Api,
    text: str,
    question: str,
    max_tokens: int = 32,
    alpha: float = 0.5,
    *,
    compare: Compare = False,
) -> dict[str, object]:
    """Answer a question on a text, preferring the text to the model's memory."""
    async with Context(api) as informed, Context(api) as ignorant:
        informed.fill_chat([{"role": "user", "content": f"{text} {question}"}])
        ignorant.fill_chat([{"role": "user", "content": question}])
        compared = await plain_text(informed, max_tokens, compare)
        tokens = await generate_aware(informed, ignorant, max_tokens, alpha=alpha)
    return {"text": api.detokenize(tokens, skip_special=True), **compared}
