"""The protocol of a channel between node and router: headers, frames, and their bounds.

A module of its own, so that a router reads them without the rest of the node's edge.
"""

from __future__ import annotations

import struct

CHANNEL_HEADER = "x-quire-channel"
"""In a request: the channel's name and the stream's number in it, ``NAME.NUMBER``. In its answer:
the events are sent over the channel."""

NAME_HEADER = "x-quire-channel-name"
"""The name of a new channel, in ``GET /v1/microserving/channel``."""

FRAME = struct.Struct("<II")
"""Precedes each piece: the number of its stream, and its length. Length 0: the rest of this stream
is sent over its own connection. ``HEARTBEAT`` belongs to no stream."""

HEARTBEAT = FRAME.pack(0, 0)
HEARTBEAT_S = 2.0
MAX_PIECE_BYTES = 64 << 10
"""A stream with a longer piece leaves the channel."""
