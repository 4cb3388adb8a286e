"""The listener's HTTP/1.1: uvicorn's protocol over httptools, with a bound on what is not body.

httptools keeps a header in memory until it is whole, however long it gets; this is the one place
that stops it. Bodies have their own limit, where they are read.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10
"""Request line, headers and trailers of one request."""

_PIECE_BYTES = 16 << 10
"""A read is parsed in such pieces, so that a head is looked at before it is whole."""

_FRAMING_PER_BODY_BYTE = 8
"""Chunked framing may be that much larger than the body that it carries."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """Answers a request whose head passes ``MAX_HEAD_BYTES`` with 400 and closes."""

    _num_received = 0
    _num_body = 0

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            self._num_received += len(piece)
            super().data_received(piece)
            if self.transport.is_closing():
                return
            framing = self._num_received - (1 + _FRAMING_PER_BODY_BYTE) * self._num_body
            if framing > MAX_HEAD_BYTES:
                self.send_400_response(f"The request head is longer than {MAX_HEAD_BYTES} bytes.")
                return

    def on_message_begin(self) -> None:
        self._num_received = self._num_body = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._num_body += len(body)
        super().on_body(body)


__all__ = ["MAX_HEAD_BYTES", "BoundedHttpProtocol"]
