"""Prompts of microserving requests as tokens, and places in them.

Owns the meaning of a negative index and the checks against the model. Must not know leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quire.core.errors import InvalidArgument
from quire.core.interfaces import ServedModel
from quire.server.plain_text import text_tokens


async def prompt_tokens(
    model: ServedModel, prompt: str | list[int], add_special_tokens: bool | None
) -> tuple[int, ...]:
    """The tokens of a prompt.

    Raises:
        InvalidArgument: none, or one that the model does not have.
        PromptTooLong: more than its context.
    """
    if isinstance(prompt, str):
        tokens = tuple(await asyncio.to_thread(text_tokens, model, prompt, add_special_tokens))
    else:
        tokens = tuple(prompt)
    if not tokens:
        raise InvalidArgument("the prompt is empty: send at least one token", param="prompt")
    if max(tokens) >= model.info.vocab_size:
        raise InvalidArgument(
            f"prompt has token {max(tokens)}, but the model has {model.info.vocab_size} tokens",
            param="prompt",
        )
    model.room_behind(len(tokens), least=0)
    return tokens


def place_in(tokens: Sequence[int], index: int, name: str) -> int:
    """``index`` counted from the prompt's beginning.

    Raises:
        InvalidArgument: it lies outside the prompt.
    """
    place = index + len(tokens) if index < 0 else index
    if not 0 <= place <= len(tokens):
        raise InvalidArgument(
            f"{name} is {index} and the prompt has {len(tokens)} tokens: choose "
            f"{-len(tokens)} to {len(tokens)}",
            param=name,
        )
    return place
