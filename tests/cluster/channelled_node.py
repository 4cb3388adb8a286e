"""A stand-in for a node whose streams go over channels: the listener and channels of a real one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
from router_world import listening
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from quire.core.config import ServerConfig
from quire.server.listening.listener import make_listener
from quire.server.listening.piece_writer import STATE_KEY
from quire.server.microserving.channel_frames import NAME_HEADER
from quire.server.microserving.channels import Channels, ChannelStream

Pieces = Callable[[str], AsyncIterator[bytes]]
"""The events of a stream, by its prompt."""


class ChannelledNode:
    """``is_deaf``: it answers nothing to a router that wants a stream to leave."""

    def __init__(self, pieces: Pieces) -> None:
        self.name = "node"
        self.peer = SimpleNamespace(url="")
        self.channels = Channels()
        self.channel: asyncio.Task[None] | None = None
        self.num_left = 0
        self.num_ended = 0
        self.is_deaf = False
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.channels.over(scope, send) as sending:
            scope.setdefault("state", {})["send_body"] = sending
            await (await self._answer(scope, receive))(scope, receive, sending)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        path, headers = scope["path"], dict(scope["headers"])
        if path == "/health":
            return JSONResponse({"status": "ok"})
        if path == "/v1/microserving/channel":
            name = headers[NAME_HEADER.encode()].decode()
            self.channel = asyncio.current_task()
            return ChannelStream(
                self.channels, name, scope["state"][STATE_KEY], 30.0, lambda: False
            )
        if path == "/v1/microserving/channel/leave":
            body = msgspec.json.decode((await receive())["body"])
            self.num_left += 1
            if not self.is_deaf:
                self.channels.leave(body["channel"], body["stream"])
            return Response(status_code=204)
        if path == "/v1/completions":
            prompt = msgspec.json.decode((await receive())["body"])["prompt"]
            return StreamingResponse(self._events(prompt), media_type="text/event-stream")
        return JSONResponse({}, 404)

    async def _events(self, prompt: str) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces(prompt):
                yield piece
        finally:
            self.num_ended += 1


@asynccontextmanager
async def channelled(pieces: Pieces) -> AsyncIterator[ChannelledNode]:
    node = ChannelledNode(pieces)
    sock = socket.create_server(("127.0.0.1", 0))
    node.peer.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    listener = make_listener(node, ServerConfig(), has_lifespan=False, close_timeout_s=1)
    await listening(listener, sock)
    try:
        yield node
    finally:
        await listener.shutdown(sockets=[sock])
