"""An MCP server that the node runs, asked through the node's service."""

from __future__ import annotations

from typing import Any

from quire.programs.api.issuer import Issuer


class NodeChannel:
    """``McpChannel`` to the server that the node's configuration calls ``server``.

    The process is shared by the programs that may use it, so there is nothing to open or close but
    the program's own view of it.
    """

    def __init__(self, issuer: Issuer, server: str) -> None:
        self._issuer = issuer
        self._server = server

    @property
    def server(self) -> str:
        return self._server

    async def open(self) -> str:
        name: str = await self._issuer.call("mcp.connect", server=self._server)
        return name

    async def list_tools(self, cursor: str | None) -> dict[str, Any]:
        result: dict[str, Any] = await self._issuer.call(
            "mcp.list_tools", server=self._server, cursor=cursor
        )
        return result

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = await self._issuer.call(
            "mcp.call_tool", server=self._server, name=name, arguments=arguments
        )
        return result

    async def close(self) -> None:
        """The node ends the process when nobody uses it."""
