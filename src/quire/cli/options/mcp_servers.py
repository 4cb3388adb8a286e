"""The file of MCP servers that a node runs for its programs: ``--mcp-servers``."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection
from pathlib import Path

import msgspec

from quire.core.errors import ConfigError
from quire.core.ids import TenantId
from quire.core.mcp_config import McpServerConfig

_DEFAULTS = McpServerConfig("default", "command")


class ServerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[servers.NAME]`` table. ``directory`` is relative to the file."""

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    directory: str | None = None
    tenants: tuple[str, ...] | None = None
    timeout_s: float = _DEFAULTS.timeout_s
    idle_s: float = _DEFAULTS.idle_s
    max_message_bytes: int = _DEFAULTS.max_message_bytes


class ServersFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    servers: dict[str, ServerEntry]


def read_mcp_servers(
    path: Path | None, tenants: Collection[TenantId]
) -> tuple[McpServerConfig, ...]:
    """Return the servers of ``path``; none if it is ``None``. ``tenants``: those that the node has.

    Raises:
        ConfigError: the file cannot be read, or names a tenant that does not exist.
    """
    if path is None:
        return ()
    try:
        parsed = msgspec.convert(tomllib.loads(path.read_text("utf-8")), ServersFile)
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"--mcp-servers {path} is not a file of MCP servers ({exc}): it needs "
            "[servers.NAME] tables with command = ..."
        ) from exc
    return tuple(
        _server(path, name, entry, tenants) for name, entry in sorted(parsed.servers.items())
    )


def _server(
    path: Path, name: str, entry: ServerEntry, tenants: Collection[TenantId]
) -> McpServerConfig:
    allowed = None if entry.tenants is None else tuple(TenantId(one) for one in entry.tenants)
    unknown = sorted(set(allowed or ()) - set(tenants))
    if unknown:
        raise ConfigError(
            f"{path}: MCP server {name} is for the tenants {', '.join(unknown)}, which this node "
            f"does not have; it has {', '.join(sorted(tenants))}"
        )
    command = entry.command
    if os.sep in command:  # a bare name is looked up in PATH
        command = str(path.parent.joinpath(command).absolute())
    directory = None
    if entry.directory is not None:
        directory = path.parent.joinpath(entry.directory).absolute()
    return McpServerConfig(
        name=name,
        command=command,
        args=entry.args,
        env=entry.env,
        directory=directory,
        tenants=allowed,
        timeout_s=entry.timeout_s,
        idle_s=entry.idle_s,
        max_message_bytes=entry.max_message_bytes,
    )
