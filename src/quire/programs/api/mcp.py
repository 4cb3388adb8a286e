"""A client of MCP servers over streamable HTTP (Model Context Protocol, revision 2025-06-18).

JSON-RPC in POST requests; the answer is JSON, or a stream of events that ends with it. Owns the
session with one server. Runs in the program, natively and sandboxed, over the program's own HTTP;
must not know its policy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Self

from quire import __version__
from quire.core.errors import ProgramError
from quire.programs.api.http_stream import StreamedReply

PROTOCOL_VERSION = "2025-06-18"
UNDERSTOOD = ("2025-06-18", "2025-03-26")
_METHOD_NOT_FOUND = -32601
_MAX_PAGES = 100

Request = Callable[[str, str, bytes | None, Mapping[str, str]], StreamedReply]
"""``request(method, url, body, headers)``: the program's own ``http_stream``."""


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool that a server offers. ``parameters`` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class McpResult:
    """What a tool gave. ``text``: of all its text blocks; ``content``: every block as it came;
    ``structured``: by the tool's output schema, if it has one; ``is_error``: the tool says that it
    failed, in words that are meant for the model."""

    text: str
    content: list[dict[str, Any]]
    structured: dict[str, Any] | None
    is_error: bool


class McpServer:
    """A session with one server: ``async with`` it."""

    def __init__(self, request: Request, url: str, headers: Mapping[str, str]) -> None:
        self._request = request
        self._url = url
        self._headers = dict(headers)
        self._numbers = count(1)
        self.name = ""

    async def __aenter__(self) -> Self:
        result = await self._ask(
            "initialize",
            {
                "protocolVersion": PROTOCOL_VERSION,
                "capabilities": {},
                "clientInfo": {"name": "quire", "version": __version__},
            },
        )
        version = result.get("protocolVersion")
        if version not in UNDERSTOOD:
            raise ProgramError(
                f"MCP server {self._url} speaks {version!r}, understood are {', '.join(UNDERSTOOD)}"
            )
        self._headers["mcp-protocol-version"] = str(version)
        self.name = str(result.get("serverInfo", {}).get("name", ""))
        await self._tell({"method": "notifications/initialized"})
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let the server forget the session; one that does not want to be told is left alone."""
        if "mcp-session-id" in self._headers:
            async with self._request("DELETE", self._url, None, self._headers):
                pass

    async def list_tools(self) -> list[McpTool]:
        """The tools that the server offers now."""
        tools: list[McpTool] = []
        cursor: dict[str, Any] = {}
        for _ in range(_MAX_PAGES):
            result = await self._ask("tools/list", cursor)
            tools += [_tool(entry) for entry in result.get("tools", [])]
            if not result.get("nextCursor"):
                return tools
            cursor = {"cursor": result["nextCursor"]}
        raise ProgramError(f"MCP server {self._url} lists tools on more than {_MAX_PAGES} pages")

    async def call_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> McpResult:
        """Call a tool.

        Raises:
            ProgramError: the server refuses the call, or does not answer as it should.
        """
        result = await self._ask("tools/call", {"name": name, "arguments": dict(arguments or {})})
        content = result.get("content", [])
        texts = [str(block.get("text", "")) for block in content if block.get("type") == "text"]
        return McpResult(
            text="\n".join(texts),
            content=content,
            structured=result.get("structuredContent"),
            is_error=bool(result.get("isError", False)),
        )

    # -- JSON-RPC ----------------------------------------------------------------------------------

    async def _ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": dict(params)}
        async with self._post(message) as reply:
            if not reply.ok:
                raise ProgramError(
                    f"MCP server {self._url} answered {method} with status {reply.status}: "
                    f"{(await reply.text())[:500]}"
                )
            if "mcp-session-id" in reply.headers:
                self._headers["mcp-session-id"] = reply.headers["mcp-session-id"]
            answer = await self._answer(reply, number)
        if answer is None:
            raise ProgramError(f"MCP server {self._url} has not answered {method}")
        if "error" in answer:
            error = answer["error"]
            raise ProgramError(
                f"MCP server {self._url} refuses {method}: {error.get('message', error)}"
            )
        result = answer.get("result")
        if not isinstance(result, dict):
            raise ProgramError(f"MCP server {self._url} answered {method} without a result")
        return result

    async def _answer(self, reply: StreamedReply, number: int) -> dict[str, Any] | None:
        if not reply.headers.get("content-type", "").startswith("text/event-stream"):
            return self._parsed(await reply.text())
        async for event in reply.events():
            message = self._parsed(event.data)
            if message.get("id") == number and "method" not in message:
                return message
            if "id" in message and "method" in message:
                await self._tell(_reply_to(message))
        return None

    async def _tell(self, message: Mapping[str, Any]) -> None:
        async with self._post(message) as reply:
            if not reply.ok:
                raise ProgramError(
                    f"MCP server {self._url} answered a notification with status {reply.status}"
                )

    def _post(self, message: Mapping[str, Any]) -> StreamedReply:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        headers = {
            **self._headers,
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        }
        return self._request("POST", self._url, body, headers)

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise ProgramError(f"MCP server {self._url} sent what is not JSON: {exc}") from exc
        if not isinstance(message, dict):
            raise ProgramError(f"MCP server {self._url} sent JSON that is no JSON-RPC message")
        return message


def _reply_to(request: Mapping[str, Any]) -> dict[str, Any]:
    """The server may ask too; this client offers nothing but its presence."""
    if request["method"] == "ping":
        return {"id": request["id"], "result": {}}
    error = {"code": _METHOD_NOT_FOUND, "message": f"{request['method']} is not offered"}
    return {"id": request["id"], "error": error}


def _tool(entry: Mapping[str, Any]) -> McpTool:
    return McpTool(
        name=str(entry["name"]),
        description=str(entry.get("description") or ""),
        parameters=dict(entry.get("inputSchema") or {"type": "object"}),
    )


__all__ = ["McpResult", "McpServer", "McpTool"]
