"""Tools that are not functions: those of an MCP server, and programs.

Owns what a developer may configure about them. Must not know how they are called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from quire.core.errors import InvalidArgument

TOOL_KEYS = frozenset({"functions", "mcp", "program", "timeout_s", "api_key_env"})
"""The fields of the ``config`` of an engine of kind tool."""
TIMEOUT_S, MAX_TIMEOUT_S = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class McpTools:
    """``server``: its name among those that the node runs, or its URL. ``api_key_env``: the
    environment variable with the key that is sent to a URL; None: no key is sent."""

    server: str
    timeout_s: float = TIMEOUT_S
    api_key_env: str | None = None

    @property
    def is_url(self) -> bool:
        return "://" in self.server


@dataclass(frozen=True, slots=True)
class ProgramTool:
    """``program``: the name or hash of an uploaded program, or a name of the library."""

    program: str
    timeout_s: float = TIMEOUT_S


def tools_elsewhere(engine: str, config: Mapping[str, Any]) -> McpTools | ProgramTool | None:
    """Return what the engine ``engine`` calls, or None if it calls functions.

    Raises:
        InvalidArgument: none or several of ``functions``, ``mcp`` and ``program``, or a field that
            it cannot have.
    """
    given = [name for name in ("functions", "mcp", "program") if name in config]
    if len(given) != 1:
        raise _error(engine, "functions", f"has {' and '.join(given) or 'nothing to call'}: give "
                     "one of functions, mcp (an MCP server) and program")  # fmt: skip
    for key, needed in (("timeout_s", ("mcp", "program")), ("api_key_env", ("mcp",))):
        if key in config and given[0] not in needed:
            raise _error(engine, key, f"is for {' or '.join(needed)}: leave it out")
    if given == ["functions"]:
        return None
    name = config[given[0]]
    if not isinstance(name, str) or not name.isprintable() or not name.strip():
        raise _error(engine, given[0], f"is {name!r:.60}: give a name")
    timeout_s = config.get("timeout_s", TIMEOUT_S)
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not (is_number and isfinite(timeout_s) and 0 < timeout_s <= MAX_TIMEOUT_S):
        raise _error(engine, "timeout_s", f"is {timeout_s!r:.60}: give seconds above 0, at most "
                     f"{MAX_TIMEOUT_S:.0f}")  # fmt: skip
    if given == ["program"]:
        return ProgramTool(name, timeout_s)
    key_env = config.get("api_key_env")
    if key_env is not None and not ("://" in name and str(key_env).isidentifier()):
        raise _error(engine, "api_key_env", f"is {key_env!r:.60}: name an environment variable, "
                     "for a server that is named by its URL")  # fmt: skip
    return McpTools(name, timeout_s, key_env)


def _error(engine: str, key: str, text: str) -> InvalidArgument:
    return InvalidArgument(f"engine {engine!r}: {key} {text}", param=key)
