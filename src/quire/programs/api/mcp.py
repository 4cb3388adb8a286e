"""A program's session with an MCP server (Model Context Protocol), over any channel.

Owns the program's view: tools and their results. A ``McpChannel`` speaks the protocol: over HTTP
(``mcp_http``), or through the node to a server that it runs (``mcp_node``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from quire.core.errors import ProgramError

_MAX_PAGES = 100
_MAX_LISTED_CHARS = 4 << 20
"""The most characters of all tools that a server lists."""


class McpChannel(Protocol):
    """The connection to one server. ``open`` is called first, ``close`` last."""

    @property
    def server(self) -> str:
        """The server's name in errors."""
        ...

    async def open(self) -> str:
        """Agree on the protocol; returns the name that the server reports."""
        ...

    async def list_tools(self, cursor: str | None) -> dict[str, Any]:
        """The result of ``tools/list``; ``cursor``: the ``nextCursor`` of the preceding page."""
        ...

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of ``tools/call``."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool that a server offers. ``parameters`` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class McpResult:
    """The result of a tool call. ``text``: its text blocks, joined; ``content``: every block as
    received; ``structured``: the value by the tool's output schema, if it has one; ``is_error``:
    the tool reports that it failed, with an explanation for the model."""

    text: str
    content: list[dict[str, Any]]
    structured: dict[str, Any] | None
    is_error: bool


class McpServer:
    """A session with one server; use ``async with``."""

    def __init__(self, channel: McpChannel) -> None:
        self._channel = channel
        self.name = ""

    async def __aenter__(self) -> Self:
        self.name = await self._channel.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def list_tools(self) -> list[McpTool]:
        """The tools that the server offers now.

        Raises:
            ProgramError: it lists too many, or its answer breaks the protocol.
        """
        tools: list[McpTool] = []
        cursor: str | None = None
        num_chars = 0
        for _ in range(_MAX_PAGES):
            result = await self._channel.list_tools(cursor)
            for entry in self._objects(result, "tools"):
                num_chars += len(json.dumps(entry))
                tools.append(self._tool(entry))
            if num_chars > _MAX_LISTED_CHARS:
                raise self._broken(f"lists tools in more than {_MAX_LISTED_CHARS} characters")
            following = result.get("nextCursor") or None
            if following is None:
                return tools
            if following == cursor or not isinstance(following, str):
                raise self._broken("lists tools on pages that lead nowhere")
            cursor = following
        raise self._broken(f"lists tools on more than {_MAX_PAGES} pages")

    async def call_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> McpResult:
        """Call a tool.

        Raises:
            ProgramError: the server refuses the call, or its answer breaks the protocol.
        """
        result = await self._channel.call_tool(name, dict(arguments or {}))
        content = self._objects(result, "content")
        texts = [str(block.get("text", "")) for block in content if block.get("type") == "text"]
        structured = result.get("structuredContent")
        if not isinstance(structured, dict | None):
            raise self._broken("gave a result whose structuredContent is no object")
        return McpResult(
            text="\n".join(texts),
            content=content,
            structured=structured,
            is_error=bool(result.get("isError", False)),
        )

    def _objects(self, result: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
        found = result.get(field) or []
        if not (isinstance(found, list) and all(isinstance(one, dict) for one in found)):
            raise self._broken(f"gave a result whose {field!r} is no list of objects")
        return found

    def _tool(self, entry: Mapping[str, Any]) -> McpTool:
        name, parameters = entry.get("name"), entry.get("inputSchema") or {"type": "object"}
        if not isinstance(name, str) or not isinstance(parameters, dict):
            raise self._broken("lists a tool without a name, or whose inputSchema is no object")
        return McpTool(name, str(entry.get("description") or ""), dict(parameters))

    def _broken(self, what: str) -> ProgramError:
        return ProgramError(f"MCP server {self._channel.server} {what}")
