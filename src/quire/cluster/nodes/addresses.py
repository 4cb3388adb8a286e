"""The addresses of nodes, as the operator of a router writes them.

Owns their syntax and what makes two of them the same node. Must not connect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from quire.core.errors import ConfigError

_PORTS = {"http": 80, "https": 443}
_EXAMPLE = "write e.g. --node http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a node listens. ``name`` is the node's name in metrics and in the placement of
    sessions: routers that are to agree about the home of a session must give a node the same name.
    """

    name: str
    host: str
    port: int
    tls: bool = False

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.netloc}"

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def read_address(text: str) -> NodeAddress:
    """Return the node of ``URL`` or ``NAME=URL``; without a name it is called by host and port.
    ``URL`` may be the base URL of OpenAI clients.

    Raises:
        ConfigError: it is no address of a node.
    """
    name, named, url = text.partition("=") if "=" in text.partition("://")[0] else ("", "", text)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise ConfigError(f"{text!r} is not the address of a node ({exc}): {_EXAMPLE}") from exc
    if parts.scheme not in _PORTS or not parts.hostname or (named and not name):
        raise ConfigError(f"{text!r} is not the address of a node: {_EXAMPLE}")
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(
            f"{text!r} has more than scheme, host and port: {_EXAMPLE}, and give nodes' API keys "
            "with --node-key-file"
        )
    if parts.path.rstrip("/") not in ("", "/v1"):
        raise ConfigError(f"{text!r} has the path {parts.path!r}, and nodes have none: {_EXAMPLE}")
    address = NodeAddress(
        name, parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "https"
    )
    return address if name else NodeAddress(address.netloc, address.host, address.port, address.tls)


def read_addresses(texts: Iterable[str]) -> tuple[NodeAddress, ...]:
    """Return the nodes of a router.

    Raises:
        ConfigError: ``texts`` is empty, has one that is no address, or names a node twice.
    """
    found = tuple(map(read_address, texts))
    if not found:
        raise ConfigError(f"a router needs at least one node: {_EXAMPLE}")
    for what, values in (
        ("name", [one.name for one in found]),
        ("address", [one.netloc for one in found]),
    ):
        twice, num = Counter(values).most_common(1)[0]
        if num > 1:
            raise ConfigError(f"{num} nodes have the {what} {twice!r}: name each node once")
    return found
