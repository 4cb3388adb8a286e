"""The home of a session: a rule that every router computes alike, with nothing to remember.

Rendezvous hashing: each node has a score for the session, and the highest is its home. A node that
is lost or added moves only its own sessions.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from quire.cluster.nodes.node import RoutedNode


def by_preference(key: str, nodes: Iterable[RoutedNode]) -> list[RoutedNode]:
    """Return ``nodes`` in the order of preference: the home of ``key`` first, then the node to
    which it moves while that one is away, and so on."""
    return sorted(nodes, key=lambda node: _score(key, node.name), reverse=True)


def _score(key: str, name: str) -> bytes:
    text = f"{len(key)}:{key}{name}".encode("utf-8", "surrogateescape")
    return blake2b(text, digest_size=8).digest()
