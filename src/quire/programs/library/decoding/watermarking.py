"""Watermarking: a text that the owner of a key can recognise (Kirchenbauer et al., 2023).

    quire run watermarking -- "List 9 words." 96 4.0 1.0 --compare

The preceding token, hashed with a key, makes a share ``gamma`` of the vocabulary green. The scores
of green tokens are increased by ``bias`` before the choice, so a watermarked text has more of them
than chance: the detector counts them and returns by how many standard deviations they exceed chance
(``z``). It needs neither the model nor the prompt. A bias of 0 changes nothing. Traits: Decode (the
prompt), OutputText.

::

    token before ──hash with key──► green or not, for each candidate
    log p   sat -0.9   was -1.1   ran -2.3
    bias        +0.0       +2.0       +2.0      green: was, ran
    choice                 was
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.library.answers import Compare
from quire.programs.sdk import Context, inferlet, steps
from quire.programs.sdk.dists import best, draw, log_probs, softmax


@dataclass(frozen=True, slots=True)
class Watermark:
    """``gamma``: the share of green tokens, between 0 and 1. The key is the secret."""

    key: str
    gamma: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1:
            raise InvalidArgument(f"gamma is {self.gamma}: choose a share between 0 and 1")

    def is_green(self, before: int, token: int) -> bool:
        """Whether ``token`` is green after ``before``."""
        digest = hashlib.blake2b(
            f"{before} {token}".encode(), key=self.key.encode()[:64], digest_size=8
        ).digest()
        return int.from_bytes(digest, "big") < self.gamma * 2**64

    def z_score(self, tokens: Sequence[int]) -> float:
        """Standard deviations by which green tokens exceed chance; 4 or more is proof.

        A pair of tokens is counted once, however often it is repeated (section 4 of the paper).
        """
        pairs = set(pairwise(tokens))
        if not pairs:
            return 0.0
        num_green = sum(self.is_green(before, token) for before, token in pairs)
        deviation = math.sqrt(len(pairs) * self.gamma * (1 - self.gamma))
        return (num_green - self.gamma * len(pairs)) / deviation


async def generate_marked(
    ctx: Context, mark: Watermark, max_tokens: int, *, bias: float, heat: float = 0.0, seed: int = 0
) -> list[int]:
    """Continue ``ctx``, greedily or drawn at temperature ``heat``."""
    start, uniform = len(ctx), random.Random(seed)
    async for dist in steps(ctx, max_tokens):
        before = ctx.tokens[-1]
        scores = {
            token: score + bias * mark.is_green(before, token)
            for token, score in log_probs(dist).items()
        }
        if heat > 0:
            ctx.fill([draw(softmax(scores, heat), uniform.random())])
        else:
            ctx.fill([best(scores)])
    return list(ctx.tokens[start:])


@inferlet("watermarking", traits={"Decode": 1, "OutputText": 1, "Tokenize": 1}, restartable=True)
async def watermarking(
    api: Api, question: str, max_tokens: int = 96, bias: float = 2.0, heat: float = 0.7,
    key: str = "quire", *, compare: Compare = False,
) -> dict[str, object]:  # fmt: skip
    """Answer with a watermark, and measure it; for comparison, measure an answer without a bias."""
    mark = Watermark(key)
    async with Context(api) as ctx:
        ctx.fill_chat([{"role": "user", "content": question}])
        compared = {}
        if compare:
            async with ctx.fork() as fork:
                unmarked = await generate_marked(fork, mark, max_tokens, bias=0.0, heat=heat)
            compared = {"z_without_bias": round(mark.z_score(unmarked), 2)}
        tokens = await generate_marked(ctx, mark, max_tokens, bias=bias, heat=heat)
    return {
        "text": api.detokenize(tokens, skip_special=True),
        "num_tokens": len(tokens),
        "z": round(mark.z_score(tokens), 2),
        **compared,
    }
