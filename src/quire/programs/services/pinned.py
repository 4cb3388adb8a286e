"""To which address connections go that are opened now: the one that was checked.

A host's name stays in the request, for its certificate and for the pool of connections; what it
means cannot change between the check and the connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_address: ContextVar[str | None] = ContextVar("address", default=None)


@contextmanager
def pinned(address: str | None) -> Iterator[None]:
    """Connections that this task opens within go to ``address``; ``None``: to whatever a name
    means."""
    token = _address.set(address)
    try:
        yield
    finally:
        _address.reset(token)


def pinned_address() -> str | None:
    return _address.get()
