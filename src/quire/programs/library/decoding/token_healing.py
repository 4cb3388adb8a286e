"""Token healing: continue a prompt that ends within a word (Lundberg, 2023).

    quire run token_healing -- "<|bos|><|user|>Who are you?<|end|><|assistant|>I am a sm" --compare

A prompt's last token says more than its text: a tokenizer that sees ``small`` does not write
``sm``, so the model has learned that something else follows ``sm``. The last tokens are therefore
removed, and the next ones must spell the same text, and may be longer: the most likely token that
begins with all of the text is chosen, and generation continues without constraint. Removing no
token is plain decoding. Traits: Tokenize (the vocabulary), Decode, Sample (allowed tokens).

::

    I | am | a | _ | sm           as tokenized
    I | am | a | . . . .          two taken back; allowed: _small, _smile, _smart, ...
    I | am | a | _small
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.library.answers import Compare, plain_text
from quire.programs.sdk import Context, greedy, inferlet


def continuations(vocabulary: Sequence[bytes], text: bytes) -> list[int]:
    """The tokens that may replace ``text``: those that begin with all of it, itself included; if
    there are none, the longest token that is a prefix of it.

    Raises:
        InvalidArgument: no token is a prefix of it.
    """
    whole = [token for token, spelled in enumerate(vocabulary) if spelled.startswith(text)]
    if whole:
        return whole
    length = max(len(spelled) for spelled in vocabulary if text.startswith(spelled))
    if not length:
        raise InvalidArgument(f"no token of the vocabulary begins {text!r}")
    return [vocabulary.index(text[:length])]


async def heal(ctx: Context, vocabulary: Sequence[bytes], num_taken: int = 1) -> list[int]:
    """Replace the last ``num_taken`` tokens of ``ctx`` by tokens that spell the same text or more;
    return these. A special token has no text: it stays, and so do the tokens before it."""
    start = len(ctx)
    while start > max(1, len(ctx) - num_taken) and vocabulary[ctx.tokens[start - 1]]:
        start -= 1
    left = b"".join(vocabulary[token] for token in ctx.tokens[start:])
    ctx.truncate(start)
    while left:
        allowed = continuations(vocabulary, left)
        await ctx.generate(max_tokens=1, sampler=greedy(allowed_tokens=allowed), ignore_eos=True)
        left = left[len(vocabulary[ctx.tokens[-1]]) :]
    return list(ctx.tokens[start:])


@inferlet("token_healing", traits={"Decode": 1, "Tokenize": 1}, restartable=True)
async def token_healing(
    api: Api, prompt: str, max_tokens: int = 32, num_taken: int = 2, *, compare: Compare = False
) -> dict[str, object]:
    """Continue a prompt that may end within a word, and report the tokens that replaced its last
    ones."""
    async with Context(api) as ctx:
        before = ctx.fill(prompt).tokens
        compared = await plain_text(ctx, max_tokens, compare)
        healed = await heal(ctx, api.get_vocabs(), num_taken)
        kept = before[: len(ctx) - len(healed)]
        await ctx.generate(max_tokens=max_tokens)
        return {
            "text": ctx.text,
            "taken_back": [api.detokenize(token) for token in before[len(kept) :]],
            "written": [api.detokenize(token) for token in healed],
            **compared,
        }
