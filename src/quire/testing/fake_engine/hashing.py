"""The fake model: what it computes for a token, as 64-bit hashes instead of tensors.

A transformer's K and V of a token depend on the token's content, its position and everything that
it saw, and so do these hashes. The model has two layers. Layer 0 of a token hashes its content and
position. A layer computes a token's next value from its value and the *multiset* of the values
visible to it (a wrapping sum of their hashes, which is sensitive to multiplicity but not to order).
The first two values are what a KV slot stores; the third is the final hidden state, from which
logits are drawn. Two runs agree exactly when they saw the same context at the same positions under
the same mask. An adapter changes layer 0 of the tokens that are run with it, and thereby everything
computed from them.

All functions are element-wise over arrays of uint64, wrapping.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import F32, U64

NUM_LAYERS = 2
"""Values that a slot stores per token."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TOKEN_SALT = np.uint64(0x7F4A7C159E3779B9)
_ADAPTER_SALT = np.uint64(0xA24BAED4963EE407)
_TURN = np.uint64(0xC2B2AE3D27D4EB4F)
_LAYER_SALTS = (np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA0761D6478BD642F))
_LOGIT_RANGE = 16.0


def mix(values: U64) -> U64:
    """SplitMix64's finaliser: a bijection with pseudo-random output."""
    with np.errstate(over="ignore"):
        mixed = values + _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
        return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)


def embed_tokens(token_ids: NDArray[Any]) -> U64:
    """The content of embedded tokens."""
    return mix(np.asarray(token_ids).astype(np.uint64) ^ _TOKEN_SALT)


def embed_image(file: bytes, num_embeds: int) -> U64:
    """Values of an image's embeds: each is a hash of the whole file and the embed's index."""
    digest = np.frombuffer(hashlib.sha256(file).digest(), np.uint64)[0]
    return mix(digest ^ mix(np.arange(num_embeds, dtype=np.uint64)))


def first_layer(contents: U64, positions: NDArray[Any], adapter: int = -1) -> U64:
    """Layer 0 of tokens: content and position under an adapter (-1: none)."""
    with np.errstate(over="ignore"):
        values = mix(contents + mix(np.asarray(positions).astype(np.uint64)))
    if adapter < 0:
        return values
    return mix(values ^ mix(np.array([adapter], np.uint64) ^ _ADAPTER_SALT))


def turned(values: U64, shifts: NDArray[Any]) -> U64:
    """Values of slots that were moved by ``shifts`` positions. Moving there and back changes
    nothing, and the number of steps does not matter; but the result differs from values computed
    there."""
    with np.errstate(over="ignore"):
        return values + np.asarray(shifts).astype(np.int64).astype(np.uint64) * _TURN


def visible_terms(layer: int, values: U64) -> U64:
    """The contribution of each visible token to the tokens that see it in ``layer``."""
    return mix(values ^ _LAYER_SALTS[layer])


def next_layer(layer: int, values: U64, visible_sums: U64) -> U64:
    """The next layer's values from a token's own and the sum of its visible terms."""
    with np.errstate(over="ignore"):
        return mix(values + visible_sums * _LAYER_SALTS[layer])


def logits_of(hidden: U64, vocab_size: int) -> F32:
    """Pseudo-random logits in [0, 16). [N] -> [N, vocab_size]"""
    with np.errstate(over="ignore"):
        seeds = hidden[:, None] + np.arange(1, vocab_size + 1, dtype=np.uint64) * _GOLDEN
    uniform = (mix(seeds) >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return (uniform * _LOGIT_RANGE).astype(np.float32)


def draw_uniform(seed: int, position: int) -> float:
    """The counter-based random number in [0, 1) for one draw."""
    words = np.array([seed & 0xFFFFFFFFFFFFFFFF, position], np.uint64)
    mixed = mix(words)
    return float(mix(mixed[:1] ^ (mixed[1:] << np.uint64(1)))[0] >> np.uint64(11)) / float(1 << 53)
