"""What every transport checks alike, and how it says that it has ended."""

from __future__ import annotations

from quire.core.errors import ProtocolMismatch, QuireError, TransferFailed
from quire.core.kv_transport import KVSink, Piece


def is_raw_between(layout: str, sink: KVSink) -> bool:
    """Whether a source with ``layout`` sends raw pieces to ``sink``."""
    return layout == sink.layout != ""


def require_size(sink: KVSink, piece: Piece, size: int, most_bytes: int | None = None) -> None:
    """Raises ``ProtocolMismatch`` for a piece that has another size than the sink's, or is too
    large; ``InvalidArgument`` for one that the sink does not take."""
    expected = sink.num_bytes(piece)
    if size != expected or (most_bytes is not None and size > most_bytes):
        raise ProtocolMismatch(
            f"a piece of {size} bytes, where {piece} has {expected} and at most "
            f"{'any number' if most_bytes is None else most_bytes} are taken"
        )


def ended_here() -> QuireError:
    return TransferFailed("the sending engine is ending")
