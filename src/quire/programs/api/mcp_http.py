"""An MCP server over streamable HTTP.

Sends JSON-RPC in POST requests; the response is JSON, or a stream of events that ends with the
answer. Owns the session with one server. Runs in the program, natively and sandboxed, over the
program's own HTTP; must not know its network policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from quire.core.errors import ProgramError
from quire.programs.api.http_stream import StreamedReply
from quire.programs.services import mcp_protocol as protocol

Request = Callable[[str, str, bytes | None, Mapping[str, str]], StreamedReply]
"""``request(method, url, body, headers)``: the program's own ``http_stream``."""


_MAX_MESSAGES = 10_000
"""The most messages of a stream before the answer, such as progress and requests of the server."""


class HttpChannel:
    """``McpChannel`` to the server at ``url``. ``headers`` are sent with every request."""

    def __init__(self, request: Request, url: str, headers: Mapping[str, str]) -> None:
        self._request = request
        self._url = url
        self._headers = dict(headers)
        self._numbers = count(1)

    @property
    def server(self) -> str:
        return self._url

    async def open(self) -> str:
        result = await self._ask("initialize", protocol.INITIALIZE)
        self._headers["mcp-protocol-version"], name = protocol.agreed(self._url, result)
        await self._tell(protocol.INITIALIZED)
        return name

    async def close(self) -> None:
        """End the session. That a server refuses the request (status 405), or is gone, is
        ignored: the session is over, and no earlier error may be hidden."""
        if "mcp-session-id" in self._headers:
            with suppress(ProgramError):
                async with self._request("DELETE", self._url, None, self._headers):
                    pass

    async def list_tools(self, cursor: str | None) -> dict[str, Any]:
        return await self._ask("tools/list", {} if cursor is None else {"cursor": cursor})

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return await self._ask("tools/call", {"name": name, "arguments": arguments})

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
        return protocol.result_of(self._url, method, answer)

    async def _answer(self, reply: StreamedReply, number: int) -> dict[str, Any] | None:
        if not reply.headers.get("content-type", "").startswith("text/event-stream"):
            return protocol.parsed(self._url, await reply.text())
        num_messages = 0
        async for event in reply.events():
            num_messages += 1
            if num_messages > _MAX_MESSAGES:
                raise ProgramError(
                    f"MCP server {self._url} has sent {_MAX_MESSAGES} messages and no answer"
                )
            message = protocol.parsed(self._url, event.data)
            if message.get("id") == number and "method" not in message:
                return message
            if "id" in message and "method" in message:
                await self._tell(protocol.reply_to(message))
        return None

    async def _tell(self, message: Mapping[str, Any]) -> None:
        async with self._post(message) as reply:
            if not reply.ok:
                raise ProgramError(
                    f"MCP server {self._url} answered a notification with status {reply.status}"
                )

    def _post(self, message: Mapping[str, Any]) -> StreamedReply:
        headers = {
            **self._headers,
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        }
        return self._request("POST", self._url, protocol.encoded(message), headers)
