"""One program's access to the node's MCP servers: under its tenant and its capabilities.

Owns the requests that a program may send to a shared server: listing its tools, and calling them.
No request that would change the server for other programs is passed on. The node runs the servers
(``AskServer``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from quire.core.ids import TenantId
from quire.programs.services.operations import Identity, ProgramService, operation

AskServer = Callable[[str, TenantId, str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""``ask(server, tenant, method, params)`` returns the result of one request; for ``initialize`` it
returns the result from the server's start."""


class McpService(ProgramService):
    """``ask`` may be awaited on any loop."""

    def __init__(self, identity: Identity, ask: AskServer) -> None:
        self._tenant = identity.tenant
        self._allowed = identity.capabilities
        self._ask = ask

    @operation("mcp.connect")
    async def connect(self, server: str) -> str:
        result = await self._request(server, "initialize", {})
        info = result.get("serverInfo")
        return str(info.get("name", "")) if isinstance(info, dict) else ""

    @operation("mcp.list_tools")
    async def list_tools(self, server: str, cursor: str | None) -> dict[str, Any]:
        params = {} if cursor is None else {"cursor": cursor}
        return await self._request(server, "tools/list", params)

    @operation("mcp.call_tool")
    async def call_tool(self, server: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return await self._request(server, "tools/call", {"name": name, "arguments": arguments})

    async def _request(self, server: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._allowed.check_mcp_server(server)
        return await self._ask(server, self._tenant, method, params)
