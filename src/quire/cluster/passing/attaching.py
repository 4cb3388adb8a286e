"""Passes a WebSocket on: frames of both directions, as they come, until either side ends.

Owns the two connections of one attachment. Must not know what the frames say.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from quire.cluster.nodes.node import Node
from quire.cluster.requests.locating import Locator
from quire.cluster.requests.places import Holder, place_of
from quire.cluster.requests.request import Request
from quire.core.config import ServerConfig
from quire.core.errors import EngineLost, QuireError, UnknownHandle
from quire.server.security import refuse

logger = logging.getLogger(__name__)

_MAX_FRAME_BYTES = 2 << 20
_OPEN_TIMEOUT_S = 10.0
_ABNORMAL = 1011
_PASSED_ON = frozenset({b"authorization", b"x-api-key"})


class Attachments:
    """WebSockets to the nodes that have the programs."""

    def __init__(self, locator: Locator, config: ServerConfig, node_key: str | None = None) -> None:
        self._locator = locator
        self._config = config
        self._node_key = node_key

    async def attach(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One attachment, from its handshake to its end."""
        try:
            client = await self._open(scope)
        except QuireError as error:
            await refuse(error, scope, receive, send)
            return
        try:
            await receive()  # the handshake
            await send({"type": "websocket.accept", "headers": []})
            await self._pass_on(client, receive, send)
        finally:
            await client.close()

    async def _open(self, scope: Scope) -> ClientConnection:
        headers = list(scope["headers"])
        path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        place = place_of(Request("GET", path, headers, b"", scope["state"]["request_id"]))
        if not (isinstance(place, Holder) and path.endswith("/attach")):
            raise UnknownHandle(
                f"no WebSocket at {path[:200]}: there is /v1/programs/{{program}}/attach"
            )
        node = await self._locator.find(place.lookups, headers)
        if node is None:
            raise UnknownHandle(f"no node has the program {place.name[:100]!a}")
        return await self._connect(node, f"{path}?{query}" if query else path, scope)

    async def _connect(self, node: Node, target: str, scope: Scope) -> ClientConnection:
        url = f"{'wss' if node.address.tls else 'ws'}://{node.address.netloc}{target}"
        headers = [
            (name.decode(), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name in _PASSED_ON and self._node_key is None
        ]
        if self._node_key is not None:
            headers.append(("authorization", f"Bearer {self._node_key}"))
        headers.append(("x-request-id", scope["state"]["request_id"]))
        try:
            return await connect(
                url,
                additional_headers=headers,
                open_timeout=_OPEN_TIMEOUT_S,
                max_size=_MAX_FRAME_BYTES,
                proxy=None,
                compression=None,
            )
        except InvalidStatus as exc:
            status = exc.response.status_code
            raise UnknownHandle(f"node {node.name} refuses the attachment ({status})") from exc
        except (OSError, TimeoutError, InvalidHandshake) as exc:
            raise EngineLost(f"node {node.name} cannot be reached ({exc})") from exc

    async def _pass_on(self, client: ClientConnection, receive: Receive, send: Send) -> None:
        outward = asyncio.create_task(self._to_client(client, send))
        inward = asyncio.create_task(_to_node(client, receive))
        try:
            await asyncio.wait({outward, inward}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            outward.cancel()
            inward.cancel()
            await asyncio.gather(outward, inward, return_exceptions=True)
        if not inward.cancelled() and inward.exception() is None:
            return  # the client has left
        code, reason = client.close_code or _ABNORMAL, client.close_reason or ""
        if code == 1006:  # never sent: it stands for a connection that broke
            code, reason = _ABNORMAL, "the program's node is lost"
        with suppress(OSError, RuntimeError):
            await send({"type": "websocket.close", "code": code, "reason": reason})

    async def _to_client(self, client: ClientConnection, send: Send) -> None:
        with suppress(ConnectionClosed):
            while True:
                frame = await client.recv()
                kind = "text" if isinstance(frame, str) else "bytes"
                async with asyncio.timeout(self._config.write_timeout_s):
                    await send({"type": "websocket.send", kind: frame})


async def _to_node(client: ClientConnection, receive: Receive) -> None:
    """Until the client leaves."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        text = message.get("text")
        await client.send(message["bytes"] if text is None else text)
