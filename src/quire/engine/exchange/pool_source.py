"""Tokens of this engine's pool that are sent to another engine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from quire.core.kv_transport import Piece
from quire.engine.exchange.layer_progress import ForwardGate
from quire.engine.exchange.pieces import PieceForm
from quire.engine.kv_cache.token_form import (
    TokenPlaces,
    TokenPool,
    positions_at,
    read_places,
)


class PoolSource:
    """Implements ``KVSource`` for the tokens at ``places``, which go to index ``first`` of a lease
    and on. ``gate``: of the forward that writes some of them."""

    def __init__(
        self,
        pool: TokenPool,
        content: str,
        places: TokenPlaces,
        first: int,
        gate: ForwardGate | None = None,
    ) -> None:
        self._gate = gate
        self._pool = pool
        self._content = content
        self._places = places
        self._first = first
        self._form = PieceForm(pool.form, len(pool.positions_AS), pool.raw)

    @property
    def content(self) -> str:
        return self._content

    @property
    def layout(self) -> str:
        return self._form.layout

    def pieces(self, *, is_raw: bool) -> Iterator[Piece]:
        at_once = None if self._gate is None else 1
        num_tokens = len(self._places.slots)
        return self._form.cut(self._first, num_tokens, is_raw=is_raw, most_layers=at_once)

    def is_ready(self, piece: Piece) -> bool:
        return self._gate is None or self._gate.has_ended

    def wait(self, piece: Piece) -> None:
        if self._gate is not None:
            self._gate.wait(piece.first_layer + piece.num_layers)

    def num_bytes(self, piece: Piece) -> int:
        return self._form.num_bytes(piece)

    def read(self, piece: Piece, payload: memoryview) -> None:
        """Fill ``payload`` with the bytes of a piece."""
        start = piece.first - self._first
        places = self._places.part(start, start + piece.num_tokens)
        positions, tokens = self._form.split(piece, np.frombuffer(payload, np.uint8))
        if piece.first_layer == 0:
            positions[:] = positions_at(self._pool, places)
        layers = range(piece.first_layer, piece.first_layer + piece.num_layers)
        with torch.inference_mode():
            if piece.is_raw:
                self._form.raw_tokens.read(places, layers, tokens)
            else:
                read_places(self._pool, places, layers, tokens)
