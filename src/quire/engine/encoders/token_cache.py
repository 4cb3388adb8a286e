"""Vectors of tokens that late interaction has computed, kept for texts that come again.

A document is embedded when it is indexed, and ranked at a query; both need the same hidden states.
Owns which texts are known. No owner can tell, by a result or by its time, what was computed for
another. Must not know what the vectors are used for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from quire.core.batch import I32
from quire.core.fair_cache import FairCache

TokenVectors = Callable[[Sequence[I32]], list[Tensor]]
"""Computes a vector for each token [L, H] of sequences of tokens."""

_OVERHEAD_BYTES = 400
"""The memory of the key, the tensor and the tables, besides the vectors' numbers."""


class OwnedText(NamedTuple):
    """A text and its owner. ``owner``: None if it must not be found again. ``tokens``: of int32."""

    owner: int | None
    tokens: bytes


class TokenCache:
    """At most ``max_bytes`` of vectors; 0: none are kept, and a text is computed once in a
    batch."""

    def __init__(self, max_bytes: int, compute: TokenVectors) -> None:
        self._cache = FairCache[int, Tensor](max_bytes)
        self._compute = compute

    @property
    def num_bytes(self) -> int:
        return self._cache.num_bytes

    def vectors(self, texts: Sequence[OwnedText]) -> tuple[dict[OwnedText, Tensor], int]:
        """A vector for each token of each text [L, H], and the tokens of those that were kept."""
        found: dict[OwnedText, Tensor] = {}
        missing: list[OwnedText] = []
        for text in dict.fromkeys(texts):
            kept = None if text.owner is None else self._cache.get(text.owner, _key(text))
            if kept is None:
                missing.append(text)
            else:
                found[text] = kept
        num_reused = sum([len(one) for one in found.values()])
        if missing:
            computed = self._compute([np.frombuffer(text.tokens, np.int32) for text in missing])
            for text, vectors_LH in zip(missing, computed, strict=True):
                found[text] = vectors_LH
                self._keep(text, vectors_LH)
        return found, num_reused

    def _keep(self, text: OwnedText, vectors_LH: Tensor) -> None:
        if text.owner is None:
            return
        own_LH = vectors_LH.clone()  # a view would keep the whole batch
        self._cache.put(text.owner, _key(text), own_LH, own_LH.nbytes + _OVERHEAD_BYTES)


def _key(text: OwnedText) -> bytes:
    return hashlib.blake2b(text.tokens, digest_size=16).digest()
