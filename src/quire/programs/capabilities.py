"""What a program may reach beside the model: hosts, topics, stores, MCP servers.

A manifest names them by patterns. A program may reach what its manifest, its node and (for a child)
its parent all allow. Pure values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.core.errors import Forbidden

Within = Callable[[str, str], bool]
"""Whether everything that matches the first pattern also matches the second."""


def name_within(name: str, pattern: str) -> bool:
    """Whether ``pattern`` (a name, or a prefix followed by ``*``) covers ``name``, which may be a
    pattern too."""
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return name == pattern


def host_within(host: str, pattern: str) -> bool:
    """Whether ``pattern`` (a host, ``*.example.org`` for subdomains, or ``*``) covers ``host``,
    which may be a pattern too."""
    host, pattern = host.lower(), pattern.lower()
    if pattern == "*" or host == pattern:
        return True
    return pattern.startswith("*.") and host != "*" and host.endswith(pattern[1:])


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Patterns of what is allowed; ``None``: everything, as for sessions.

    ``topics``: names of topics and work queues. ``stores``: namespaces of the store.
    ``mcp_servers``: servers that the node runs.
    """

    hosts: tuple[str, ...] | None = None
    topics: tuple[str, ...] | None = None
    stores: tuple[str, ...] | None = None
    mcp_servers: tuple[str, ...] | None = None

    def check_topic(self, name: str) -> None:
        """Raise ``Forbidden`` unless the program may use the topic or queue ``name``."""
        _check("topic", "topics", name, self.topics)

    def check_store(self, name: str) -> None:
        """Raise ``Forbidden`` unless the program may use the namespace ``name``."""
        _check("store", "stores", name, self.stores)

    def allows_store(self, name: str) -> bool:
        """Whether ``check_store`` would return."""
        return self.stores is None or any(name_within(name, one) for one in self.stores)

    def check_mcp_server(self, name: str) -> None:
        """Raise ``Forbidden`` unless the program may use the node's MCP server ``name``."""
        _check("MCP server", "mcp_servers", name, self.mcp_servers)

    def narrowed(self, other: Capabilities) -> Capabilities:
        """The capabilities that both allow."""
        return Capabilities(
            hosts=_both(self.hosts, other.hosts, host_within),
            topics=_both(self.topics, other.topics, name_within),
            stores=_both(self.stores, other.stores, name_within),
            mcp_servers=_both(self.mcp_servers, other.mcp_servers, name_within),
        )


def _check(kind: str, field: str, name: str, allowed: tuple[str, ...] | None) -> None:
    if allowed is not None and not any(name_within(name, pattern) for pattern in allowed):
        raise Forbidden(
            f"{kind} {name!r} is not allowed for this program, which has "
            f"{', '.join(allowed) or 'none'}: name it in @inferlet({field}=[...]), and in its "
            "parent's if it has one"
        )


def _both(
    left: tuple[str, ...] | None, right: tuple[str, ...] | None, within: Within
) -> tuple[str, ...] | None:
    """The patterns that both allow. Of two patterns, one includes the other or they have nothing in
    common."""
    if left is None or right is None:
        return left if right is None else right
    inner = [one for one in left if any(within(one, other) for other in right)]
    inner += [one for one in right if any(within(one, other) for other in left)]
    return tuple(sorted(set(inner)))
