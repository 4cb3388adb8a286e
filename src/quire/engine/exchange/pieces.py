"""What one piece holds in an exchange between engines, and how tokens are cut into pieces.

The bytes of a piece: if it has layer 0, the positions of its tokens (int32 ``[axis][token]``); then
K and V in canonical form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quire.core.batch import I32
from quire.core.kv_transport import Piece
from quire.engine.kv_cache.token_form import U8, TokenForm

PIECE_BYTES = 1 << 20
"""About what is sent at a time: more would not go faster, and less would."""

_TOGETHER = 16
"""Pieces hold whole multiples of so many tokens where they can, because tiles do."""


@dataclass(frozen=True, slots=True)
class PieceForm:
    """``num_axes``: of positions."""

    tokens: TokenForm
    num_axes: int

    def position_bytes(self, piece: Piece) -> int:
        return 4 * self.num_axes * piece.num_tokens if piece.first_layer == 0 else 0

    def num_bytes(self, piece: Piece) -> int:
        per_token = piece.num_layers * self.tokens.bytes_per_layer
        return self.position_bytes(piece) + piece.num_tokens * per_token

    def split(self, piece: Piece, payload: U8) -> tuple[I32, U8]:
        """Views of the positions ``[axes, tokens]`` (no tokens without layer 0), and of K and V."""
        size = self.position_bytes(piece)
        positions = payload[:size].view(np.int32).reshape(self.num_axes, -1)
        return positions, payload[size:]

    def cut(self, first: int, num_tokens: int) -> Iterator[Piece]:
        """All layers of ``num_tokens`` tokens from index ``first``, layer by layer."""
        per_token = self.tokens.bytes_per_layer
        most_tokens = max(1, PIECE_BYTES // per_token)
        if most_tokens >= _TOGETHER:
            most_tokens -= most_tokens % _TOGETHER
        most_layers = max(1, PIECE_BYTES // (per_token * max(1, min(num_tokens, most_tokens))))
        num_layers = self.tokens.num_layers
        for layer in range(0, num_layers, most_layers):
            for token in range(0, num_tokens, most_tokens):
                yield Piece(
                    first=first + token,
                    num_tokens=min(most_tokens, num_tokens - token),
                    first_layer=layer,
                    num_layers=min(most_layers, num_layers - layer),
                )
