"""Tokens as bytes: a long prompt is packed once, and then compared, checked and sent as it is.

A list of tokens is passed in some nanoseconds for each of them, because every number is an object;
of bytes, thousands are compared or converted at once. Owns the form, eight bytes for each token,
which is also what keys of pages are computed from.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import error as not_packed
from struct import pack, unpack

import numpy as np

from quire.core.batch import I32

TOKEN_BYTES = 8


class PackedPrompt:
    """A command's prompt: ``tokens``, the very list that the command has, and the same packed."""

    __slots__ = ("packed", "tokens")

    def __init__(self, tokens: list[int], packed: bytes) -> None:
        self.tokens = tokens
        self.packed = packed


def packed_prompt(tokens: list[int]) -> PackedPrompt | None:
    """Pack a prompt that nobody has checked yet; None if something in it is no token."""
    try:
        return PackedPrompt(tokens, pack_tokens(tokens))
    except not_packed:  # a number of more than 64 bits, or none at all
        return None


def pack_tokens(tokens: Sequence[int]) -> bytes:
    return pack(f"{len(tokens)}q", *tokens)


def unpack_tokens(packed: bytes) -> list[int]:
    return list(unpack(f"{len(packed) // TOKEN_BYTES}q", packed))


def least_and_most(packed: bytes) -> tuple[int, int]:
    """The smallest and the greatest of one or more tokens."""
    tokens = np.frombuffer(packed, np.int64)
    return int(tokens.min()), int(tokens.max())


def token_array(packed: bytes) -> I32:
    """The tokens as messages have them; each fits into 32 bits."""
    return np.frombuffer(packed, np.int64).astype(np.int32)


def int_array(numbers: Sequence[int]) -> I32:
    """Blocks or slots as messages have them; NumPy alone takes twice as long for a long list."""
    return token_array(pack_tokens(numbers))
