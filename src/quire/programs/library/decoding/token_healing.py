"""Token healing: a prompt that ends within a word is taken up there (Lundberg, 2023).

    quire run token_healing -- "The capital of Fra" 16

A prompt's last token says more than its text: a tokenizer that had seen ``France`` would have
written another token than ``Fra``, so the model has learned that something else follows. The last
token is taken back, and the next ones must begin with its text: of the vocabulary those that
continue it are allowed, the most likely of them is chosen, and generation goes on freely. Traits:
Tokenize (the vocabulary), Decode, Sample (allowed tokens).

::

    The | capital | of | Fra           as tokenized
    The | capital | of | ........      taken back; allowed: Fra, France, Fran, Frame, F, Fr, ...
    The | capital | of | France
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.programs.api import Api
from quire.programs.sdk import Context, greedy, inferlet


def continuations(vocabulary: Sequence[bytes], text: bytes) -> list[int]:
    """The tokens with which ``text`` may be written: those it begins, and those that begin it."""
    return [
        token
        for token, spelled in enumerate(vocabulary)
        if spelled and (spelled.startswith(text) or text.startswith(spelled))
    ]


async def heal(ctx: Context, vocabulary: Sequence[bytes]) -> list[int]:
    """Write the last token of ``ctx`` anew, with whatever follows it; the tokens that took its
    place. A special token, which has no text, stays."""
    last = ctx.tokens[-1]
    left = vocabulary[last]
    if len(ctx) < 2 or not left:
        return [last]
    start = len(ctx) - 1
    ctx.truncate(start)
    while left:
        allowed = continuations(vocabulary, left)
        await ctx.generate(max_tokens=1, sampler=greedy(allowed_tokens=allowed), ignore_eos=True)
        left = left[len(vocabulary[ctx.tokens[-1]]) :]
    return list(ctx.tokens[start:])


@inferlet("token_healing")
async def token_healing(api: Api, prompt: str, max_tokens: str = "32") -> dict[str, object]:
    """Continue a prompt that may end within a word; which tokens took the place of its last."""
    async with Context(api) as ctx:
        before = ctx.fill(prompt).tokens[-1]
        healed = await heal(ctx, api.get_vocabs())
        await ctx.generate(max_tokens=int(max_tokens))
        return {
            "text": ctx.text,
            "last_token": api.detokenize(before),
            "healed": [api.detokenize(token) for token in healed],
        }


__all__ = ["continuations", "heal", "token_healing"]
