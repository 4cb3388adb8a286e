"""Passes a WebSocket on: frames of both directions, as they come, until either side ends.

Owns the two connections of one attachment. When a program moves to another node, the client's
connection stays, and the other one is opened anew to the program's node. Must not know what the
frames mean, except for the numbers of messages.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
from contextlib import suppress
from typing import Literal
from urllib.parse import parse_qs

from pydantic import TypeAdapter
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from quire.cluster.nodes.node import RoutedNode
from quire.cluster.passing.program_rescue import ProgramRescue
from quire.cluster.passing.sent_frames import SentFrames
from quire.cluster.requests.locating import Locator
from quire.cluster.requests.places import HoldingNode, place_of
from quire.cluster.requests.request import Request
from quire.core.config import ServerConfig
from quire.core.errors import EngineLost, QuireError, UnknownHandle
from quire.server.errors.errors import body_of
from quire.server.programs.attachments import (
    BEFORE_HEADER,
    CONNECTION_HEADER,
    HAS_MOVED,
    TAKEN_HEADER,
    frames_taken,
)
from quire.server.security import refuse

logger = logging.getLogger(__name__)

_NUMBER = TypeAdapter(int)

_MAX_FRAME_BYTES = 2 << 20
_OPEN_TIMEOUT_S = 10.0
_ABNORMAL = 1011
_SEQUENCE = re.compile(r'\{"type": ?"message", ?"sequence": ?(\d{1,15})')
_PASSED_ON = frozenset({b"authorization", b"x-api-key"})


def _new_name() -> str:
    """Return a name for a connection to a node; no client can guess it."""
    return secrets.token_hex(16)


class Attachments:
    """Connects the WebSockets of clients to the nodes that have their programs. ``rescue`` finds
    the programs of lost nodes."""

    def __init__(
        self,
        locator: Locator,
        rescue: ProgramRescue,
        config: ServerConfig,
        node_key: str | None = None,
    ) -> None:
        self._locator = locator
        self._rescue = rescue
        self._config = config
        self._node_key = node_key

    async def attach(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one attachment, from its handshake to its end."""
        name = _new_name()
        try:
            client = await self._open(scope, name)
        except QuireError as error:
            await refuse(error, scope, receive, send)
            return
        try:
            await receive()  # the handshake
            await send({"type": "websocket.accept", "headers": []})
            after = parse_qs(scope["query_string"].decode("latin-1")).get("after", ["0"])[-1]
            last = _NUMBER.validate_strings(after)  # as the node has read it
        except BaseException:
            await client.close()
            raise
        attachment = _Attachment(client, receive, send, self._config.write_timeout_s, last)
        try:
            while left := await attachment.run():
                before, name = name, _new_name()
                client = await self._open(
                    scope, name, attachment.last, None if left == "moved" else before
                )
                attachment.follow(client, was_lost=left == "lost")
        except QuireError as error:
            logger.warning("an attachment cannot follow its program: %s", error.message)
            await attachment.fail(error)
        finally:
            await attachment.end()

    async def _open(
        self, scope: Scope, name: str, after: int | None = None, before: str | None = None
    ) -> ClientConnection:
        """Open the connection ``name`` to the program's node. ``after``: given when the program has
        moved; the number of the last message that the client has. ``before``: the name of the
        connection that was lost."""
        headers = list(scope["headers"])
        path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        place = place_of(Request("GET", path, headers, b"", scope["state"]["request_id"]))
        if not (isinstance(place, HoldingNode) and path.endswith("/attach")):
            raise UnknownHandle(
                f"no WebSocket at {path[:200]}: there is /v1/programs/{{program}}/attach"
            )
        if after is not None:
            self._locator.forget(place.lookups)
            query = f"after={after}"
        self._rescue.check(place.lookups)
        finds = self._locator if before is None else self._rescue
        node = await finds.find(place.lookups, headers)
        if node is None:
            raise UnknownHandle(f"no node has the program {place.name[:100]!a}")
        target = f"{path}?{query}" if query else path
        own = [(CONNECTION_HEADER, name)]
        if before is not None:
            own.append((BEFORE_HEADER, before))
        try:
            return await self._connect(node, target, scope, own)
        except UnknownHandle:  # another router may have moved the program
            other = await self._locator.find_again(place.lookups, headers, node)
            if other is None:
                raise
            return await self._connect(other, target, scope, own)

    async def _connect(
        self, node: RoutedNode, target: str, scope: Scope, own: list[tuple[str, str]]
    ) -> ClientConnection:
        url = f"{'wss' if node.address.tls else 'ws'}://{node.address.netloc}{target}"
        headers = [
            (name.decode(), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name in _PASSED_ON and self._node_key is None
        ]
        if self._node_key is not None:
            headers.append(("authorization", f"Bearer {self._node_key}"))
        headers += [("x-request-id", scope["state"]["request_id"]), *own]
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


class _Attachment:
    """The connection of a client, and the connection to the node that has its program now. ``last``
    is the number of the last message that the client has received."""

    def __init__(
        self,
        client: ClientConnection,
        receive: Receive,
        send: Send,
        write_timeout_s: float,
        last: int,
    ) -> None:
        self.client = client
        self.last = last
        self._send = send
        self._write_timeout_s = write_timeout_s
        self._sent = SentFrames()
        self._inward = asyncio.create_task(self._from_client(receive))

    def follow(self, client: ClientConnection, *, was_lost: bool) -> None:
        """Go on with ``client``, the connection to the node that has the program now. ``was_lost``:
        the former connection broke off.

        Raises:
            EngineLost: it is not known which of the client's frames the program has.
        """
        self.client = client
        if was_lost:
            told = client.response.headers.get(TAKEN_HEADER) if client.response else None
            if told is None:
                raise EngineLost(
                    "the program's node is lost, and with it what it has: attach again"
                )
            self._sent.go_on(int(told))

    async def run(self) -> Literal["moved", "lost"] | None:
        """Pass frames on until either side ends. Return "moved" if the program has moved, "lost" if
        its node is lost, None if the attachment is over.

        Raises:
            EngineLost: it has moved, and frames of its client that the node has not taken are gone.
        """
        outward = asyncio.create_task(self._to_client())
        to_node = asyncio.create_task(self._to_node())
        try:
            await asyncio.wait({outward, self._inward}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            outward.cancel()
            to_node.cancel()
            await asyncio.gather(outward, to_node, return_exceptions=True)
        if self._inward.done():
            return None  # the client has left
        code, reason = self.client.close_code or _ABNORMAL, self.client.close_reason or ""
        if code == HAS_MOVED:
            await self.client.close()
            self._sent.go_on(frames_taken(reason))
            return "moved"
        if code == 1006:  # no peer sends this code: it means that the connection broke
            return "lost"
        await self.close(code, reason)
        return None

    async def fail(self, error: QuireError) -> None:
        """Tell the client of ``error`` in a frame of a node, and close its connection. The reason
        of a close has room for the beginning alone, and not every client reads it."""
        with suppress(OSError, RuntimeError):
            text = json.dumps({"type": "error", **body_of(error)})
            await self._send({"type": "websocket.send", "text": text})
        await self.close(_ABNORMAL, error.message[:120])

    async def close(self, code: int, reason: str) -> None:
        with suppress(OSError, RuntimeError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})

    async def end(self) -> None:
        self._inward.cancel()
        await asyncio.gather(self._inward, return_exceptions=True)
        await self.client.close()

    async def _to_client(self) -> None:
        with suppress(ConnectionClosed):
            while True:
                frame = await self.client.recv()
                kind = "text" if isinstance(frame, str) else "bytes"
                async with asyncio.timeout(self._write_timeout_s):
                    await self._send({"type": "websocket.send", kind: frame})
                found = _SEQUENCE.match(frame) if isinstance(frame, str) else None
                if found is not None:
                    self.last = int(found[1])

    async def _from_client(self, receive: Receive) -> None:
        """Take frames from the client until it disconnects."""
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            await self._sent.put(message["bytes"] if text is None else text)

    async def _to_node(self) -> None:
        """Send frames to the node until it closes the connection, which ``run`` notices as well."""
        with suppress(ConnectionClosed):
            while True:
                await self.client.send(await self._sent.next())
