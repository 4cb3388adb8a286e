"""A plain text as the tokens of a prompt, for the routes that take texts.

Owns what stands before a text that no template has rendered. Must not know any route.
"""

from __future__ import annotations

from quire.core.interfaces import ServedModel


def text_tokens(model: ServedModel, text: str, add_special_tokens: bool | None) -> list[int]:
    """``text`` behind what the model's tokenizer puts before one, for many models a BOS, without
    which they answer much worse; unless ``text`` has it already, as what a template rendered has.

    ``add_special_tokens``: the client's field, true by default.
    """
    token_ids = model.tokenizer.encode(text)
    start = () if add_special_tokens is False else model.text_start
    has_start = tuple(token_ids[: len(start)]) == start
    return token_ids if has_start else [*start, *token_ids]


__all__ = ["text_tokens"]
