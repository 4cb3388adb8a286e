"""Log probabilities on their way to a router and back, for answers that outlive their node.

Owns their packed form: msgpack, chunk by chunk, and all chunks of a choice compressed as one. The
numbers are those that the engine has given, bit for bit.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from quire.core.decoding import TokenLogprobs

Logprobs = tuple[TokenLogprobs, ...]

MAX_LOGPROBS_BYTES = 8 << 20
"""The most packed bytes of one answer; an answer with more cannot continue at another node."""

_Entry = tuple[int, float, list[int], list[float]]
_encoder = msgspec.msgpack.Encoder()
_entries = msgspec.msgpack.Decoder(list[_Entry])
_chunks = msgspec.msgpack.Decoder(list[bytes])


def packed_logprobs(logprobs: Sequence[TokenLogprobs] | None) -> bytes:
    """Return the packed log probabilities of one chunk; empty if there are none."""
    if not logprobs:
        return b""
    return _encoder.encode(
        [(one.token_id, one.logprob, one.top_ids, one.top_logprobs) for one in logprobs]
    )


def joined(chunks: Sequence[bytes]) -> bytes:
    """Return packed ``chunks`` as one; empty if there are none."""
    return zlib.compress(_encoder.encode(chunks)) if chunks else b""


def logprobs_of(told: bytes) -> Logprobs:
    """Return the log probabilities that ``joined`` has packed.

    Raises:
        zlib.error, msgspec.MsgspecError: it was not made by ``joined``, or is too long.
    """
    if not told:
        return ()
    # the length before a chunk has fewer bytes than the chunk: twice the bound is enough
    raw = zlib.decompressobj().decompress(told, 2 * MAX_LOGPROBS_BYTES)
    chunks = _chunks.decode(raw)
    return tuple(TokenLogprobs(*entry) for chunk in chunks for entry in _entries.decode(chunk))
