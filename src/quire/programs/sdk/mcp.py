"""The tools of an MCP server as tools of a program."""

from __future__ import annotations

from typing import Any

from quire.core.errors import ProgramError
from quire.programs.api.mcp import McpServer, McpTool
from quire.programs.sdk.tools import Tool


async def mcp_tools(server: McpServer) -> list[Tool]:
    """The tools of ``server``, for a ``Toolbox``. Calls go to the server, which checks their
    arguments.

    A tool that fails raises ``ProgramError`` with the server's message; a ``Toolbox`` passes it to
    the model.
    """
    return [_tool(server, offered) for offered in await server.list_tools()]


def _tool(server: McpServer, offered: McpTool) -> Tool:
    async def call(**arguments: Any) -> str:
        result = await server.call_tool(offered.name, arguments)
        if result.is_error:
            raise ProgramError(result.text or f"the tool {offered.name!r} failed")
        return result.text

    return Tool(offered.name, offered.description, offered.parameters, call, None)
