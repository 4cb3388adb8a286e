"""Trait Net: HTTP requests of a program. Served by the runtime, under its network policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from quire.core.errors import Forbidden, InvalidArgument
from quire.core.traits import Trait
from quire.programs.api.http_stream import StreamedReply
from quire.programs.api.issuer import Issuer
from quire.programs.api.mcp import McpServer
from quire.programs.api.mcp_http import HttpChannel
from quire.programs.api.mcp_node import NodeMcpChannel
from quire.programs.api.queued import TraitFunctions
from quire.programs.services.network import HttpReply, Network


class NetFunctions(TraitFunctions):
    trait = Trait.NET

    def __init__(self, issuer: Issuer, network: Network | None = None) -> None:
        super().__init__(issuer)
        self._network = network

    async def http_get(self, url: str, headers: Mapping[str, str] | None = None) -> HttpReply:
        """GET ``url``. A response of any status is returned; see ``HttpReply``.

        Raises:
            Forbidden: the policy does not allow the host, or the program has no network.
            InvalidArgument: not an http(s) URL, or a response over the body limit.
            ProgramError: the request failed (connection, timeout).
        """
        return await self._allowed().request("GET", url, headers=headers)

    async def http_post(
        self, url: str, body: str | bytes = b"", headers: Mapping[str, str] | None = None
    ) -> HttpReply:
        """POST ``body`` to ``url``; errors as for ``http_get``."""
        content = body.encode() if isinstance(body, str) else body
        return await self._allowed().request("POST", url, content=content, headers=headers)

    def http_stream(
        self,
        url: str,
        *,
        method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET",
        body: str | bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> StreamedReply:
        """A request whose response is read as it arrives:
        ``async with api.http_stream(url) as reply``.

        Inside, ``reply.status`` and ``reply.headers`` are available, and ``async for`` iterates
        over ``reply`` (bytes), ``reply.lines()`` or ``reply.events()`` (server-sent events).
        Cancelling a read ends the response.

        Raises (when entered or read):
            Forbidden: the policy does not allow the host, or the program has no network.
            InvalidArgument: not an http(s) URL.
            ProgramError: the request failed, or no data arrived for 30 s.
            QuotaExceeded: the response is larger than 256 MiB or takes longer than 10 minutes.
        """
        content = body.encode() if isinstance(body, str) else body
        return StreamedReply(self._allowed(), method, url, content or None, headers)

    def mcp_connect(self, server: str, headers: Mapping[str, str] | None = None) -> McpServer:
        """A session with an MCP server: ``async with api.mcp_connect(server) as session``.

        ``server``: a URL (streamable HTTP, under the policy of ``http_get``; ``headers``, such as
        an API key, are sent with every request), or the name of a server that the node runs for its
        programs (over standard streams, shared by all programs that may use it).

        Inside: ``await session.list_tools()``, ``await session.call_tool(name, arguments)``; the
        SDK's ``mcp_tools(session)`` makes them tools for a model.

        Raises (when entered, and by calls):
            Forbidden: the policy does not allow the host, or the manifest of this program does not
                name the server.
            UnknownHandle: the node runs no server of that name for this tenant.
            InvalidArgument: headers for a server of the node, or a message that is too long.
            ProgramError: the server cannot be reached, ended, did not answer in time, or speaks
                another version of the protocol.
            QuotaExceeded: too many calls of the tenant are in progress at the node's server.
        """
        if "://" not in server:
            if headers:
                raise InvalidArgument(
                    f"mcp_connect: {server!r} is run by the node and takes no headers: leave them "
                    "out"
                )
            return McpServer(NodeMcpChannel(self._issuer, server))

        def request(
            method: str, target: str, body: bytes | None, sent: Mapping[str, str]
        ) -> StreamedReply:
            return StreamedReply(self._allowed(), method, target, body, sent)

        return McpServer(HttpChannel(request, server, headers or {}))

    def _allowed(self) -> Network:
        if self._network is None:
            raise Forbidden("this program has no network: launch it with a network policy")
        return self._network
