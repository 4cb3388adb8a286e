"""The headers by which a router tells a node what other nodes have sent to it."""

from __future__ import annotations

RECEIVED_HEADER = "x-quire-received"
"""Of a chat: the sealed address of the lease that has K and V of its first tokens."""
