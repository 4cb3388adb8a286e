"""Decodes content codings of HTTP responses (``gzip``, ``deflate``) piece by piece.

Owns the bounds on decompression: every piece, every layer and the whole body are bounded, and the
caller may stop between two pieces. Knows nothing of HTTP but the header's value.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from quire.core.errors import ProgramError
from quire.programs.services.request_headers import ACCEPTED_CODINGS

PIECE_BYTES = 64 << 10
"""The largest output of one layer at a time."""

MAX_LAYERS = 2
"""Nested codings: servers use one, proxies in front of them may add a second."""

FREE_BYTES = 1 << 20
MAX_RATIO = 256
"""The output may be this many times as large as the input, and ``FREE_BYTES`` in any case.
Repetitive text reaches 100; one layer of gzip could reach 1030, two layers a million."""

_GZIP_WBITS = 16 + zlib.MAX_WBITS
_ZLIB_METHOD = 8
_LAYERS = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}


class ContentDecoder:
    """Decodes the codings in ``content_encoding``, the header's value. ``what``: the name of the
    request in errors.

    Raises:
        ProgramError: a coding that is not supported, or too many of them.
    """

    def __init__(self, what: str, content_encoding: str = "") -> None:
        self._what = what
        named = [name.strip().lower() for name in content_encoding.split(",")]
        codings = [name for name in named if name not in ("", "identity")]
        unknown = [name for name in codings if name not in _LAYERS]
        if unknown:
            raise ProgramError(
                f"{what}: the response has the content-encoding {unknown[0][:40]!r}; supported are "
                f"{ACCEPTED_CODINGS}: leave accept-encoding out of the request's headers"
            )
        if len(codings) > MAX_LAYERS:
            raise ProgramError(
                f"{what}: the response has {len(codings)} nested content-encodings; at most "
                f"{MAX_LAYERS} are supported"
            )
        self._layers = [_Layer(_LAYERS[name]) for name in reversed(codings)]
        self._num_in = 0
        self._num_out = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The decoded ``data``, in pieces of at most ``PIECE_BYTES`` if there is any coding.
        Exhaust the iterator before the next ``feed``.

        Raises:
            ProgramError: the body is damaged, or grows beyond the bound.
        """
        if not self._layers:
            if data:
                yield data
            return
        self._num_in += len(data)
        if self._num_in > FREE_BYTES + 2 * self._num_out:
            raise ProgramError(
                f"{self._what}: {self._num_in} bytes of the response decode to {self._num_out}: "
                "its content-encoding is damaged"
            )
        try:
            for piece in self._through(data, 0):
                self._num_out += len(piece)
                self._check_ratio()
                yield piece
        except zlib.error as exc:
            raise ProgramError(
                f"{self._what}: the response's content-encoding is damaged: {exc}"
            ) from exc

    def end(self) -> None:
        """Check that the input is complete, at its end. Raises ``ProgramError`` if it is not."""
        if self._num_in and not all(layer.is_whole for layer in self._layers):
            raise ProgramError(f"{self._what}: the response ends within its content-encoding")

    def _through(self, data: bytes, depth: int) -> Iterator[bytes]:
        if depth == len(self._layers):
            yield data
            return
        for piece in self._layers[depth].feed(data):
            yield from self._through(piece, depth + 1)

    def _check_ratio(self) -> None:
        if self._num_out > FREE_BYTES + MAX_RATIO * self._num_in:
            raise ProgramError(
                f"{self._what}: {self._num_in} bytes of the response decode to more than "
                f"{self._num_out}; its content-encoding may enlarge it {MAX_RATIO} times at most"
            )


class _Layer:
    """One coding. ``gzip`` may have several members; ``deflate`` is zlib's format or, from some
    servers, the same without the header."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._head = b""
        self._inner = None if coding == "deflate" else zlib.decompressobj(_GZIP_WBITS)

    @property
    def is_whole(self) -> bool:
        return self._inner is not None and self._inner.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._inner is None:
            data = self._head = self._head + data
            if len(data) < 2:
                return
            has_header = data[0] & 15 == _ZLIB_METHOD and int.from_bytes(data[:2]) % 31 == 0
            self._inner = zlib.decompressobj(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)
        piece = b""
        # a full piece: zlib may have more output for the input that it has read
        while data or len(piece) == PIECE_BYTES:
            if self._inner.eof:
                if not data:
                    return
                self._begin_again()
            piece = self._inner.decompress(data, PIECE_BYTES)
            data = self._inner.unused_data if self._inner.eof else self._inner.unconsumed_tail
            if piece:
                yield piece

    def _begin_again(self) -> None:
        if self._coding != "gzip":
            raise zlib.error("data after its end")
        self._inner = zlib.decompressobj(_GZIP_WBITS)
