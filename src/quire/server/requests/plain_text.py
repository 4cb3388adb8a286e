"""Tokenizes plain text prompts, for the routes that take texts.

Owns the tokens that are put before a text that no chat template has rendered. Must not know any
route.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.interfaces import ServedModel


def text_tokens(model: ServedModel, text: str, add_special_tokens: bool | None) -> list[int]:
    """Return the tokens of ``text``, after the tokens that the model's tokenizer puts before a
    text: for many models a BOS, without which they answer much worse. They are not added to a text
    that begins with them already, as a rendered template does. ``add_special_tokens``: the client's
    field, true by default."""
    token_ids = model.tokenizer.encode(text)
    return [*added_start(model, token_ids, add_special_tokens), *token_ids]


def added_start(
    model: ServedModel, token_ids: Sequence[int], add_special_tokens: bool | None
) -> tuple[int, ...]:
    """Return the tokens that ``text_tokens`` puts before a text."""
    start = () if add_special_tokens is False else model.text_start
    has_start = tuple(token_ids[: len(start)]) == start
    return () if has_start else start
