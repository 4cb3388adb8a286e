"""Packs the frames of a wire message into one, because each frame that a socket sends has a cost.

A batch message has about ten arrays of a few bytes. Sent one by one, each would be a call that
releases the interpreter's lock, and with a busy edge in the same process a wait to get it back.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise

from quire.core.errors import ProtocolMismatch
from quire.core.wire import Frame

_LENGTH = struct.Struct("<Q")


def pack(frames: Sequence[Frame]) -> bytes:
    """Join ``frames``: their number and lengths (u64, little-endian), then the frames."""
    head = struct.pack(f"<{1 + len(frames)}Q", len(frames), *map(len, frames))
    return b"".join((head, *frames))


def unpack(packed: bytes) -> list[bytes]:
    """The frames of a message that ``pack`` made.

    Raises:
        ProtocolMismatch: the lengths do not add up to the message's size.
    """
    count = _LENGTH.unpack_from(packed)[0] if len(packed) >= _LENGTH.size else -1
    start = (1 + count) * _LENGTH.size
    if not 0 <= start <= len(packed) or count < 0:
        raise ProtocolMismatch(f"a message of {len(packed)} bytes does not begin with its frames")
    ends = list(accumulate(struct.unpack_from(f"<{count}Q", packed, _LENGTH.size), initial=start))
    if ends[-1] != len(packed):
        raise ProtocolMismatch(f"the frames of a message need {ends[-1]} bytes, not {len(packed)}")
    return [packed[first:end] for first, end in pairwise(ends)]
