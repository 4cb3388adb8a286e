"""Whether something listens at a port of this machine."""

from __future__ import annotations

import socket

_TIMEOUT_S = 1.0


def is_taken(host: str, port: int) -> bool:
    """Return whether something listens at this address. Blocks for at most a second."""
    try:
        socket.create_connection((host, port), timeout=_TIMEOUT_S).close()
    except OSError:
        return False
    return True
