"""Tokens of this engine's pool that are sent to another engine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from quire.core.kv_transport import Piece
from quire.engine.exchange.pieces import PieceForm
from quire.engine.kv_cache.token_form import I64, TokenPool


class PoolSource:
    """Implements ``KVSource`` for flat ``slots``, which go to index ``first`` of a lease and on."""

    def __init__(self, pool: TokenPool, content: str, slots: I64, first: int) -> None:
        self._pool = pool
        self._content = content
        self._slots = slots
        self._first = first
        self._form = PieceForm(pool.form, len(pool.positions_AS))
        self._buffer = np.empty(0, np.uint8)

    @property
    def content(self) -> str:
        return self._content

    def pieces(self) -> Iterator[Piece]:
        return self._form.cut(self._first, len(self._slots))

    def read(self, piece: Piece) -> memoryview:
        """The bytes of a piece; valid until the next call."""
        size = self._form.num_bytes(piece)
        if len(self._buffer) < size:
            self._buffer = np.empty(size, np.uint8)
        payload = self._buffer[:size]
        start = piece.first - self._first
        slots = self._slots[start : start + piece.num_tokens]
        positions, tokens = self._form.split(piece, payload)
        if piece.first_layer == 0:
            positions[:] = self._pool.positions_AS[:, slots]
        layers = range(piece.first_layer, piece.first_layer + piece.num_layers)
        with torch.inference_mode():
            self._pool.read_tokens(slots, layers, tokens)
        return payload.data
