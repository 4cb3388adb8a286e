"""What node and router agree on about a channel: headers, frames, and their bounds.

Alone, so that a router needs nothing of the node's edge to read them.
"""

from __future__ import annotations

import struct

CHANNEL_HEADER = "x-quire-channel"
"""Of a request: the channel's name and the stream's number in it, ``NAME.NUMBER``. Of its answer:
the events come over the channel."""

NAME_HEADER = "x-quire-channel-name"
"""Of ``GET /v1/microserving/channel``."""

FRAME = struct.Struct("<II")
"""Before each piece: the number of its stream, and its length. Length 0: what follows of this
stream comes over its own connection. ``HEARTBEAT`` is of no stream."""

HEARTBEAT = FRAME.pack(0, 0)
HEARTBEAT_S = 2.0
MAX_PIECE_BYTES = 64 << 10
"""A stream with a longer piece leaves."""
