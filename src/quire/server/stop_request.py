"""How a service is asked to end, and its address."""

from __future__ import annotations

import asyncio
import socket


class StopRequest:
    """Call it to ask a service to drain and stop; a second call cuts what still runs. Belongs to
    the service's loop."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.asked_twice = asyncio.Event()

    def __call__(self) -> None:
        if self.asked.is_set():
            self.asked_twice.set()
        self.asked.set()


def url_of(sock: socket.socket) -> str:
    """Return the HTTP address of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
