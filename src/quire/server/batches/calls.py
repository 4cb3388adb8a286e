"""A request of a batch as a request of this server: through the same routes, without a connection.

Owns what stands around the body. Cancelling a call ends it as a disconnect
does.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import ASGIApp, Message

from quire.core.ids import TenantId


@dataclass(frozen=True, slots=True)
class Answered:
    status: int
    request_id: str
    body: Any

    @property
    def code(self) -> str | None:
        """Of an error."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return error.get("code") if isinstance(error, dict) else None


class Calls(Protocol):
    """Whoever answers the requests of batches."""

    async def call(
        self, tenant: TenantId, path: str, body: Mapping[str, Any], program: str
    ) -> Answered:
        """The answer of the route at ``path``. ``program``: the client's name for the program
        that the call is part of."""
        ...


class RouteCalls:
    """``routes`` answer as they do for clients; ``application`` is what they take for theirs."""

    def __init__(self, routes: ASGIApp, application: object) -> None:
        self._routes = routes
        self._application = application

    async def call(
        self, tenant: TenantId, path: str, body: Mapping[str, Any], program: str
    ) -> Answered:
        request_id = f"req_{uuid.uuid4().hex}"
        exchange = _Exchange(json.dumps(body).encode())
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"x-quire-program-id", program.encode()),
            ],
            "client": None,
            "server": None,
            "state": {"tenant": tenant, "request_id": request_id},
            "app": self._application,
        }
        await self._routes(scope, exchange.receive, exchange.send)
        return Answered(exchange.status, request_id, json.loads(exchange.answer))


class _Exchange:
    """The body that is sent, and what comes back."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.answer = bytearray()

    async def receive(self) -> Message:
        if self._body is None:
            await asyncio.Event().wait()  # until it is cancelled: this client does not leave
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.answer += message.get("body", b"")
