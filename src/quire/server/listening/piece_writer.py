"""Writes pieces of a chunked answer as soon as they are made, without a turn of the loop.

For an application that passes on what arrives: waking a task for each piece, and sending it through
the application's layers, costs more than the piece itself. Owns the framing of a piece. Must not
know what the pieces mean.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

STATE_KEY = "piece_writer"
"""Where the writer is in the state of a request's scope."""


class PieceWriter:
    """Writes pieces of the answer that ``cycle`` sends, between those that the application
    sends."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def is_ready(self) -> bool:
        """Whether the answer is sent in chunks, and its client can take one now."""
        cycle = self._cycle
        return bool(
            cycle.chunked_encoding
            and not cycle.response_complete
            and not cycle.disconnected
            and not cycle.flow.write_paused
            and cycle.scope["method"] != "HEAD"
        )

    def write(self, piece: bytes) -> None:
        """Write a piece. Call it only while ``is_ready``; ``piece`` is not empty."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
