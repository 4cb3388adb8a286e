"""Contrastive decoding: tokens that the expert prefers more than the amateur (Li et al., 2023).

    quire run contrastive_decoding -- "Tell me about the sky." 32 1.5 --compare

Two models of a node are the expert and the amateur: ``--model LARGE --model SMALL``. A small model
makes more of the mistakes that a large one makes: where the two differ, the large one is probably
right. Among the tokens that the expert finds plausible (at least ``alpha`` times as likely as its
best) the one with the highest ``(1 + beta) log p_expert - beta log p_amateur`` is chosen (O'Brien
and Lewis, 2023). ``beta`` 0 is greedy decoding. With a single model the amateur is the same model
with attention to the last tokens only. Traits: Decode (the prompt), Forward (masks), OutputText.

::

    expert     text ──────────────► p_e ┐
                                        ├─► (1 + b) log p_e - b log p_a ─► token, to both
    amateur    text (or its end) ─► p_a ┘
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from quire.programs.api import Api
from quire.programs.library.answers import Compare, plain_text
from quire.programs.library.decoding.speculative_decoding import pair_of_models
from quire.programs.sdk import Context, ends, inferlet
from quire.programs.sdk.dists import best, bound, log_probs

AMATEUR_WINDOW = 16


def contrast(
    expert: Mapping[int, float], amateur: Mapping[int, float], *, alpha: float, beta: float
) -> dict[int, float]:
    """Scores of the plausible tokens, from log probabilities.

    A token that the amateur does not list is given the probability of its last listed one.
    """
    threshold = max(expert.values()) + (math.log(alpha) if alpha > 0 else -math.inf)
    unlisted = bound(amateur)
    return {
        token: (1 + beta) * score - beta * amateur.get(token, unlisted)
        for token, score in expert.items()
        if score >= threshold
    }


async def generate_contrastive(
    expert: Context, amateur: Context, max_tokens: int, *, alpha: float, beta: float, window: int
) -> list[int]:
    """Continue ``expert``. ``amateur`` holds the same text and attends to the last ``window``
    tokens."""
    start = len(expert)

    def in_window(query: int, key: int) -> bool:
        return query - key < window

    sees = in_window if window < amateur.model.max_tokens else None
    while len(expert) - start < max_tokens and not ends(expert, start):
        one, other = await asyncio.gather(expert.next_dist(), amateur.next_dist(sees=sees))
        token = best(contrast(log_probs(one), log_probs(other), alpha=alpha, beta=beta))
        expert.fill([token])
        amateur.fill([token])
    return list(expert.tokens[start:])


@inferlet(
    "contrastive_decoding", traits={"Decode": 1, "OutputText": 1, "Tokenize": 1}, restartable=True
)
async def contrastive_decoding(
    api: Api,
    question: str,
    max_tokens: int = 64,
    beta: float = 0.5,
    alpha: float = 0.1,
    *,
    compare: Compare = False,
) -> dict[str, object]:
    """Answer with tokens that the node's first model prefers more than its second."""
    large, small = pair_of_models(api)
    window = AMATEUR_WINDOW if large is small else small.max_tokens
    async with Context(large) as expert, Context(small) as amateur:
        expert.fill_chat([{"role": "user", "content": question}])
        amateur.fill(expert.tokens)
        compared = await plain_text(expert, max_tokens, compare)
        tokens = await generate_contrastive(
            expert, amateur, max_tokens, alpha=alpha, beta=beta, window=window
        )
    return {"text": api.detokenize(tokens, skip_special=True), **compared}
