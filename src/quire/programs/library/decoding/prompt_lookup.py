"""Speculative decoding by prompt lookup: guess the tokens that followed the same words before
(Saxena, 2023).

    quire run prompt_lookup -- "Repeat: baker frog London horse kiwi Vienna rabbit Moscow"

The last few tokens are looked up in the text so far; the tokens that followed them there are the
guess. One forward pass verifies the whole guess (``verify``) and its right part is kept, so the
tokens are those of greedy decoding in fewer steps. A guess that was right to its end is followed by
one twice as long. If nothing is found, or guesses are wrong, the engine's own loop continues
(``generate``), each time for longer: text without repetitions costs hardly more than without this
technique, text that only looks repetitive (sums, tables) does. Traits: Decode, Forward, OutputText,
Allocate (truncate).

::

    text      ... the job of Kabo is baker ...     the job of Kabo
    guess                                          is  baker  .         looked up behind `of Kabo`
    forward                                        is  baker  ,         two are right, and the one
                                                                        behind them is gained
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from quire.programs.api import Api
from quire.programs.library.answers import Count
from quire.programs.sdk import Context, ends, inferlet, verify

MIN_TOKENS = 4
"""Length of a guess, and of a run without guesses."""
MAX_GUESSED, MAX_PLAIN = 63, 32


class Lookup:
    """The last occurrences of runs of ``min_ngram`` to ``max_ngram`` tokens in a growing text. The
    time of a lookup does not depend on the text's length."""

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1) -> None:
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._behind: dict[tuple[int, ...], int] = {}
        self._num_known = 1

    def guess(self, tokens: Sequence[int], num_guessed: int) -> list[int]:
        """The tokens after the latest earlier occurrence of the last tokens, longest match first.
        ``tokens``: those of the preceding call, and more."""
        for end in range(self._num_known, len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._behind[tuple(tokens[end - size : end])] = end
        self._num_known = max(self._num_known, len(tokens))
        for size in self._sizes:
            if start := self._behind.get(tuple(tokens[-size:])):
                return list(tokens[start : start + num_guessed])
        return []


async def generate_by_lookup(
    ctx: Context, max_tokens: int, *, num_guessed: int = 16, max_ngram: int = 4, min_ngram: int = 3
) -> tuple[list[int], int]:
    """The greedy continuation, and the number of steps of the model that computed it.
    ``num_guessed``: length of the first guess; 0: never guess."""
    start, num_steps, num_plain = len(ctx), 0, MIN_TOKENS
    known, is_end = Lookup(max_ngram, min_ngram), ctx.model.eos_token_ids.__contains__
    guess: list[int] = []
    while (room := max_tokens - (len(ctx) - start)) > 0 and not ends(ctx, start):
        if guess:
            verified = await verify(ctx, guess, room)
            num_steps += 1
            if verified.num_accepted == len(guess):
                num_plain, num_guessed = MIN_TOKENS, min(2 * num_guessed, MAX_GUESSED)
            else:
                num_guessed = max(verified.num_accepted, MIN_TOKENS)
                guess = []
                continue
        else:
            generated = await ctx.generate(max_tokens=min(room, num_plain))
            num_steps += len(generated.token_ids)
            num_plain = min(2 * num_plain, MAX_PLAIN)
        found = known.guess(ctx.tokens, num_guessed)
        # verify() appends the end token anyway
        guess = list(takewhile(lambda token: not is_end(token), found))
    return list(ctx.tokens[start:]), num_steps


@inferlet("prompt_lookup", traits={"Decode": 1, "OutputText": 1, "Tokenize": 1}, restartable=True)
async def prompt_lookup(
    api: Api, question: str, max_tokens: int = 64, num_guessed: Count = 16
) -> dict[str, object]:
    """Answer greedily in fewer steps, guessing from the text so far."""
    async with Context(api) as ctx:
        ctx.fill_chat([{"role": "user", "content": question}])
        tokens, num_steps = await generate_by_lookup(ctx, max_tokens, num_guessed=num_guessed)
    return {
        "text": api.detokenize(tokens, skip_special=True),
        "num_tokens": len(tokens),
        "num_steps": num_steps,
    }
