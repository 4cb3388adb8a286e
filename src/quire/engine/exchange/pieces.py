"""Defines what one piece holds in an exchange between engines, and cuts tokens into pieces.

The bytes of a piece: if it has layer 0, the positions of its tokens (int32 ``[axis][token]``); then
K and V in canonical form, or raw.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quire.core.batch import I32
from quire.core.errors import InvalidArgument
from quire.core.kv_transport import Piece
from quire.engine.kv_cache.token_form import U8, RawTokens, TokenForm

PIECE_BYTES = 4 << 20
"""The approximate size of a piece: larger ones would not be faster, and smaller ones would be
slower."""

_TOGETHER = 16
"""Pieces begin and end at multiples of this number of tokens if they can, because tiles do."""


@dataclass(frozen=True, slots=True)
class PieceForm:
    """The bytes of pieces. ``num_axes``: the axes of positions."""

    tokens: TokenForm
    num_axes: int
    raw: RawTokens | None = None

    @property
    def layout(self) -> str:
        return "" if self.raw is None else self.raw.layout

    def position_bytes(self, piece: Piece) -> int:
        return 4 * self.num_axes * piece.num_tokens if piece.first_layer == 0 else 0

    def num_bytes(self, piece: Piece) -> int:
        if piece.is_raw:
            num_bytes = self.raw_tokens.num_bytes(piece.num_tokens, piece.num_layers)
        else:
            num_bytes = piece.num_tokens * piece.num_layers * self.tokens.bytes_per_layer
        return self.position_bytes(piece) + num_bytes

    @property
    def raw_tokens(self) -> RawTokens:
        """The raw form. Raises ``InvalidArgument`` if there is none."""
        if self.raw is None:
            raise InvalidArgument("a raw piece, which this engine does not take: send tokens")
        return self.raw

    def split(self, piece: Piece, payload: U8) -> tuple[I32, U8]:
        """Views of the positions ``[axes, tokens]`` (no tokens without layer 0), and of K and V."""
        size = self.position_bytes(piece)
        positions = payload[:size].view(np.int32).reshape(self.num_axes, -1)
        return positions, payload[size:]

    def cut(
        self,
        first: int,
        num_tokens: int,
        *,
        is_raw: bool = False,
        most_layers: int | None = None,
    ) -> Iterator[Piece]:
        """All layers of ``num_tokens`` tokens from index ``first``, layer by layer.
        ``most_layers``: of a piece; None: as many as make it a good size."""
        spans = self._spans(first, num_tokens)
        longest = max((count for _, count in spans), default=1)
        fitting = max(1, PIECE_BYTES // (self.tokens.bytes_per_layer * longest))
        most_layers = fitting if most_layers is None else most_layers
        num_layers = self.tokens.num_layers
        for layer in range(0, num_layers, most_layers):
            for start, count in spans:
                yield Piece(
                    first=start,
                    num_tokens=count,
                    first_layer=layer,
                    num_layers=min(most_layers, num_layers - layer),
                    is_raw=is_raw,
                )

    def _spans(self, first: int, num_tokens: int) -> list[tuple[int, int]]:
        """The first token and the number of tokens of each piece."""
        most = max(1, PIECE_BYTES // self.tokens.bytes_per_layer)
        if most >= _TOGETHER:
            most -= most % _TOGETHER
        spans, last = [], first + num_tokens
        while first < last:
            lead = _TOGETHER - first % _TOGETHER
            count = min(last - first, most if lead == _TOGETHER else min(lead, most))
            spans.append((first, count))
            first += count
        return spans
