"""An MCP server that the node runs, called through the node's service."""

from __future__ import annotations

from typing import Any

from quire.programs.api.issuer import Issuer


class NodeMcpChannel:
    """``McpChannel`` to the server that the node's configuration names ``server``.

    All programs that may use the server share its process, so opening and closing changes only the
    program's own view.
    """

    def __init__(self, issuer: Issuer, server: str) -> None:
        self._issuer = issuer
        self._server = server

    @property
    def server(self) -> str:
        return self._server

    async def open(self) -> str:
        name: str = await self._issuer.ask("mcp.connect", server=self._server)
        return name

    async def list_tools(self, cursor: str | None) -> dict[str, Any]:
        result: dict[str, Any] = await self._issuer.ask(
            "mcp.list_tools", server=self._server, cursor=cursor
        )
        return result

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = await self._issuer.ask(
            "mcp.call_tool", server=self._server, name=name, arguments=arguments
        )
        return result

    async def close(self) -> None:
        """Do nothing: the node ends the process when no program uses it."""
