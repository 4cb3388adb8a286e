"""One lease of this engine: which of its tokens have arrived, and their place in the pool."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import numpy as np
import torch

from quire.core.errors import EngineFault, Forbidden, InvalidArgument
from quire.core.exchange import ReceiveEnded
from quire.core.kv_transport import Carrier, Piece, carried_by
from quire.engine.exchange.pieces import PieceForm
from quire.engine.kv_cache.token_form import I64, TokenPool

logger = logging.getLogger(__name__)


class PoolSink:
    """Implements ``KVSink``: token i of the lease goes to ``slots[i]``.

    ``on_end`` is called once, on any thread, when every token has arrived or the lease has become
    useless; not after ``close``. Nothing is written after either.
    """

    def __init__(
        self,
        pool: TokenPool,
        content: str,
        lease: int,
        slots: I64,
        on_end: Callable[[ReceiveEnded], None],
    ) -> None:
        self._pool = pool
        self._content = content
        self._lease = lease
        self._slots = slots
        self._on_end = on_end
        self._form = PieceForm(pool.form, len(pool.positions_AS), pool.raw)
        self._num_layers = pool.form.num_layers
        self._lock = threading.Lock()
        self._closed = False
        self._arrived_LT = np.zeros((self._num_layers, len(slots)), np.bool_)
        self._num_missing = self._arrived_LT.size
        self._num_bytes = 0
        self._carriers: set[Carrier] = set()

    @property
    def content(self) -> str:
        return self._content

    @property
    def layout(self) -> str:
        return self._form.layout

    @property
    def is_closed(self) -> bool:
        return self._closed

    def num_bytes(self, piece: Piece) -> int:
        """The number of bytes of the piece.

        Raises:
            InvalidArgument: it is not inside of the lease, or is raw and this engine's tokens have
                no such form.
        """
        tokens, layers = len(self._slots), self._num_layers
        if not (
            _is_inside(piece.first, piece.num_tokens, tokens)
            and _is_inside(piece.first_layer, piece.num_layers, layers)
        ):
            raise InvalidArgument(
                f"{piece.num_tokens} tokens from {piece.first} and {piece.num_layers} layers from "
                f"{piece.first_layer} are outside of lease {self._lease}, which has {tokens} "
                f"tokens and {layers} layers"
            )
        return self._form.num_bytes(piece)

    def write(self, piece: Piece, payload: memoryview, carrier: Carrier) -> None:
        """Take the verified bytes of a piece.

        Raises:
            Forbidden: the lease is complete or closed.
            EngineFault: the pool cannot be written, and the lease has ended.
        """
        with self._lock:
            if self._closed:
                raise Forbidden(
                    f"lease {self._lease} takes nothing more: it is complete, has expired or was "
                    "cancelled"
                )
            try:
                self._place(piece, payload)
            except Exception as exc:
                logger.exception("K and V of lease %s cannot be written", self._lease)
                error = EngineFault(f"K and V of lease {self._lease} cannot be written: {exc!r}")
                self._end(ReceiveEnded(lease=self._lease, error=error.record()))
                raise error from exc
            self._carriers.add(carrier)
            self._count(piece, payload.nbytes)

    def close(self) -> None:
        """The fence: nothing is written once this has returned."""
        with self._lock:
            self._closed = True

    def _place(self, piece: Piece, payload: memoryview) -> None:
        slots = self._slots[piece.first : piece.first + piece.num_tokens]
        layers = range(piece.first_layer, piece.first_layer + piece.num_layers)
        positions, tokens = self._form.split(piece, np.frombuffer(payload, np.uint8))
        with torch.inference_mode():
            if piece.is_raw:
                self._form.raw_tokens.write(slots, layers, tokens)
            else:
                self._pool.write_tokens(slots, layers, tokens)
            if piece.first_layer == 0:
                self._pool.place(slots, positions)

    def _count(self, piece: Piece, num_bytes: int) -> None:
        arrived = self._arrived_LT[
            piece.first_layer : piece.first_layer + piece.num_layers,
            piece.first : piece.first + piece.num_tokens,
        ]
        self._num_missing -= arrived.size - int(arrived.sum())
        self._num_bytes += num_bytes
        arrived[:] = True
        if not self._num_missing:
            ended = ReceiveEnded(
                lease=self._lease,
                num_tokens=len(self._slots),
                num_bytes=self._num_bytes,
                transport=carried_by(self._carriers),
            )
            self._end(ended)

    def _end(self, ended: ReceiveEnded) -> None:
        self._closed = True
        self._on_end(ended)


def _is_inside(first: int, count: int, size: int) -> bool:
    return first >= 0 and count >= 1 and first + count <= size
