"""A request of a batch, sent through this server's own routes without a connection.

Owns what surrounds the body: scope, headers and the answer. Cancelling a call ends it like a
disconnect.
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
class AnsweredRequest:
    status: int
    request_id: str
    body: Any

    @property
    def code(self) -> str | None:
        """The code of the error in the body; ``None`` if there is none."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return error.get("code") if isinstance(error, dict) else None


class BatchCalls(Protocol):
    """Answers the requests of batches."""

    async def call(
        self, tenant: TenantId, path: str, body: Mapping[str, Any], program: str
    ) -> AnsweredRequest:
        """Return the answer of the route at ``path``. ``program``: the client's name for the
        session of the request."""
        ...


class RouteCalls:
    """Sends the requests to ``routes``, which answer as they do for clients; ``application`` is the
    application that they find in their scope."""

    def __init__(self, routes: ASGIApp, application: object) -> None:
        self._routes = routes
        self._application = application

    async def call(
        self, tenant: TenantId, path: str, body: Mapping[str, Any], program: str
    ) -> AnsweredRequest:
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
        return AnsweredRequest(exchange.status, request_id, json.loads(exchange.answer))


class _Exchange:
    """The request body to send, and the response that was received."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.answer = bytearray()

    async def receive(self) -> Message:
        if self._body is None:
            await asyncio.Event().wait()  # until cancelled: this client never disconnects
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.answer += message.get("body", b"")
