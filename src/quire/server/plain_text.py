"""A plain text as the tokens of a prompt, for the routes that take texts.

Owns what stands before a text that no template has rendered. Must not know any route.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.interfaces import ServedModel


def text_tokens(model: ServedModel, text: str, add_special_tokens: bool | None) -> list[int]:
    """``text`` behind what the model's tokenizer puts before one, for many models a BOS, without
    which they answer much worse; unless ``text`` has it already, as what a template rendered has.

    ``add_special_tokens``: the client's field, true by default.
    """
    token_ids = model.tokenizer.encode(text)
    return [*added_start(model, token_ids, add_special_tokens), *token_ids]


def added_start(
    model: ServedModel, token_ids: Sequence[int], add_special_tokens: bool | None
) -> tuple[int, ...]:
    """What ``text_tokens`` puts before the tokens of a text."""
    start = () if add_special_tokens is False else model.text_start
    has_start = tuple(token_ids[: len(start)]) == start
    return () if has_start else start
