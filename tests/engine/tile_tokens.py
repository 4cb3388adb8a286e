"""Tiles of the kernel's cache as tokens in canonical form, and back (``csrc/kv_cache.h``).

Works on tiles that hold consecutive tokens; which slots they came from is up to ``native_pool``.
"""

from __future__ import annotations

import torch
from torch import Tensor

TILE_SLOTS = 16


def keys_by_token(keys: Tensor, num_heads: int, padded_dim: int) -> Tensor:
    """K of whole tiles, flat as they lie, as ``[tokens / 16, 16, heads, padded_dim]``. In bfloat16
    two adjacent elements of a head lie together: they are moved as one number, which takes a sixth
    of the time. A view."""
    size = padded_dim
    if keys.dtype == torch.bfloat16:
        keys, size = keys.view(torch.int32), padded_dim // 2
    return keys.view(-1, num_heads, size, TILE_SLOTS).permute(0, 3, 1, 2)


def values_by_token(values: Tensor, num_heads: int, padded_dim: int) -> Tensor:
    """V of whole tiles, flat as they lie, as ``[tokens / 16, 16, heads, padded_dim]`` or, in
    bfloat16, with pairs of tokens ``[tokens / 16, 8, 2, heads, padded_dim]``. A view."""
    if values.dtype == torch.bfloat16:
        pairs = values.view(-1, num_heads, TILE_SLOTS // 2, padded_dim, 2)
        return pairs.permute(0, 2, 4, 1, 3)
    return values.view(-1, num_heads, TILE_SLOTS, padded_dim).permute(0, 2, 1, 3)


def take(by_token: Tensor, tokens_TKD: Tensor, padded_dim: int) -> None:
    """Copy the first tokens of such a view to ``tokens_TKD``, without the padding."""
    num_tokens, num_heads, head_dim = tokens_TKD.shape
    if tokens_TKD.nbytes == by_token.nbytes:
        tokens_TKD.view(by_token.dtype).view(by_token.shape).copy_(by_token)
        return
    padded = by_token.contiguous().view(tokens_TKD.dtype).view(-1, num_heads, padded_dim)
    tokens_TKD.copy_(padded[:num_tokens, :, :head_dim])


def put(by_token: Tensor, tokens_TKD: Tensor, padded_dim: int) -> None:
    """The reverse of ``take``; what is not a token becomes zero."""
    num_tokens, num_heads, head_dim = tokens_TKD.shape
    padded = tokens_TKD
    if tokens_TKD.nbytes != by_token.nbytes:
        num_slots = -(-num_tokens // TILE_SLOTS) * TILE_SLOTS
        padded = tokens_TKD.new_zeros(num_slots, num_heads, padded_dim)
        padded[:num_tokens, :, :head_dim] = tokens_TKD
    by_token.copy_(padded.view(by_token.dtype).view(by_token.shape))
