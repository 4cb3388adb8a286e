"""The configuration of an MCP server that a node runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quire.core.errors import ConfigError
from quire.core.ids import TenantId

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class McpServerConfig:
    """An MCP server that the node runs for its programs and talks to over standard input and
    output.

    ``command`` with ``args`` starts it, with ``env`` and the few variables that every command needs
    (PATH, HOME ...); it gets no other variable of the node. ``tenants``: those whose programs may
    use it; None: all. ``timeout_s`` bounds one answer. ``idle_s``: it is stopped after this time
    without a call. ``max_message_bytes`` bounds one message in either direction.
    """

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    directory: Path | None = None
    tenants: tuple[TenantId, ...] | None = None
    timeout_s: float = 60.0
    idle_s: float = 600.0
    max_message_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"MCP server {self.name!r}: a name has letters, digits, '.', '_' and '-' alone"
            )
        if not self.command:
            raise ConfigError(f"MCP server {self.name} has no command: say what starts it")
        if self.timeout_s <= 0 or self.idle_s <= 0 or self.max_message_bytes < 1024:
            raise ConfigError(
                f"MCP server {self.name}: timeout_s {self.timeout_s:g} and idle_s {self.idle_s:g} "
                f"must be positive, max_message_bytes {self.max_message_bytes} at least 1024"
            )
