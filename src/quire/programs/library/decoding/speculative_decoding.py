"""Speculative decoding: a small model guesses, the large one verifies (Leviathan et al., 2023).

    quire run speculative_decoding -- "What is 48 + 17?" 64 4

With ``--model LARGE --model SMALL`` the second model drafts for the first. Both models are on one
node and must share a tokenizer. The draft is one ``generate`` of a few tokens, the verification one
forward pass of the large model over all of them; right tokens are kept and the first wrong token is
replaced, so the text is exactly that of the large model alone. A single model drafts for itself:
everything is accepted, which shows the steps and gains nothing. Traits: Decode for the draft;
Forward, OutputText, Allocate (truncate) for the verification.

::

    small     t1 t2 t3 t4          one decode command
    large     t1 t2 x3             one forward pass: two accepted, and its own third token
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import InvalidArgument
from quire.programs.api import Api, Model
from quire.programs.library.answers import Count
from quire.programs.sdk import Context, ends, inferlet, verify


@dataclass(frozen=True, slots=True)
class SpeculatedText:
    """``num_accepted`` of the ``num_drafted`` tokens were right."""

    tokens: list[int]
    num_passes: int
    num_drafted: int
    num_accepted: int


async def speculate(
    ctx: Context, draft: Context, max_tokens: int, *, num_guessed: int = 4
) -> SpeculatedText:
    """Continue ``ctx`` greedily, with guesses of ``draft``, which holds the same text."""
    start = len(ctx)
    num_passes = num_drafted = num_accepted = 0
    while len(ctx) - start < max_tokens and not ends(ctx, start):
        guess: tuple[int, ...] = ()
        if num_guessed and len(draft) < draft.model.max_tokens:
            guess = (await draft.generate(max_tokens=num_guessed)).token_ids
        verified = await verify(ctx, guess, max_tokens - (len(ctx) - start))
        draft.truncate(len(ctx) - len(verified.tokens) + verified.num_accepted)
        draft.fill(ctx.tokens[len(draft) :])
        num_passes += 1
        num_drafted += len(guess)
        num_accepted += verified.num_accepted
    return SpeculatedText(list(ctx.tokens[start:]), num_passes, num_drafted, num_accepted)


def pair_of_models(api: Api) -> tuple[Model, Model]:
    """The node's first model and its second one, or the first twice.

    Raises:
        InvalidArgument: their tokenizers differ.
    """
    first, *others = [model for model in api.available_models() if model.served.adapter is None]
    second = others[0] if others else first
    sample = "0 + 1 = one, \n{}"
    if first.tokenizer.encode(sample) != second.tokenizer.encode(sample):
        raise InvalidArgument(f"models {first.id!r} and {second.id!r} do not share a tokenizer")
    return first, second


@inferlet(
    "speculative_decoding", traits={"Decode": 1, "OutputText": 1, "Tokenize": 1}, restartable=True
)
async def speculative_decoding(
    api: Api, question: str, max_tokens: int = 64, num_guessed: Count = 4
) -> dict[str, object]:
    """Answer with the output of the node's first model, with guesses of the second one."""
    model, small = pair_of_models(api)
    async with Context(model) as ctx, Context(small) as draft:
        ctx.fill_chat([{"role": "user", "content": question}])
        draft.fill(ctx.tokens)
        done = await speculate(ctx, draft, max_tokens, num_guessed=num_guessed)
    return {
        "text": api.detokenize(done.tokens, skip_special=True),
        "num_tokens": len(done.tokens),
        "num_forward_passes": done.num_passes,
        "acceptance": round(done.num_accepted / max(done.num_drafted, 1), 3),
    }
