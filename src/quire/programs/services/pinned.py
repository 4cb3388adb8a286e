"""The address for connections that are opened now: the one that the policy check has resolved.

Requests keep the host's name, for its certificate and for the connection pool, but the name is not
resolved again between the check and the connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_address: ContextVar[str | None] = ContextVar("address", default=None)


@contextmanager
def pinned(address: str | None) -> Iterator[None]:
    """Let connections that this task opens within the block go to ``address``; ``None``: the name
    is resolved."""
    token = _address.set(address)
    try:
        yield
    finally:
        _address.reset(token)


def pinned_address() -> str | None:
    return _address.get()
