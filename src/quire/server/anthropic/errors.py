"""Errors of Anthropic's routes in Anthropic's format, whichever layer raises them.

Owns the translation of an error body, as the outermost layer: refused keys and hosts, bodies that
are not JSON and failures of a route all get the same format.
"""

from __future__ import annotations

import json

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.core.errors import QuireError
from quire.server.anthropic.events import event
from quire.server.errors.errors import body_of, status_of
from quire.server.schemas.anthropic import (
    AnthropicError,
    AnthropicErrorDetails,
    AnthropicErrorObject,
)
from quire.server.schemas.base import ERRORS, Responses

PATH = "/v1/messages"

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}

THREAD_NOT_FOUND = "thread_not_found"
_DETAILED = frozenset({THREAD_NOT_FOUND, "request_body_encoding_unsupported"})
"""Error codes that Anthropic's clients read in ``details``."""

ANTHROPIC_ERRORS: Responses = {
    status: {"model": AnthropicError, "description": response["description"]}
    for status, response in ERRORS.items()
}
"""The error responses of these routes, for the OpenAPI document."""


def error_type(status: int) -> str:
    return _TYPES.get(status, "api_error" if status >= 500 else _TYPES[400])


def error_events(error: QuireError) -> list[bytes]:
    """Return the events that report an error in the middle of a stream."""
    kind = error_type(status_of(error))
    message = body_of(error)["error"]["message"]
    return [event("error", error={"type": kind, "message": message})]


class AnthropicErrors:
    """The outermost layer: translates error responses below ``PATH``, and adds the request id as
    ``request-id``, as Anthropic's clients expect."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and (path == PATH or path.startswith(f"{PATH}/")):
            send = _Translator(send).send
        await self._app(scope, receive, send)


class _Translator:
    """Translates one response. An error response is held back until its body is complete."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if "x-request-id" in headers:
                headers["request-id"] = headers["x-request-id"]
            if message["status"] >= 400:
                self._start = message
                return
        if self._start is None:
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if not message.get("more_body", False):
            await self._finish(self._start)

    async def _finish(self, start: Message) -> None:
        headers = MutableHeaders(scope=start)
        body = translated(bytes(self._body), start["status"], headers.get("x-request-id"))
        headers["content-length"] = str(len(body))
        headers["content-type"] = "application/json"
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def translated(body: bytes, status: int, request_id: str | None) -> bytes:
    """Return our error ``body`` in Anthropic's format. A refused CORS preflight has a line of plain
    text."""
    code = None
    try:
        ours = json.loads(body)["error"]
        message, code = ours["message"], ours["code"]
    except ValueError:
        message = body.decode(errors="replace")
    error = AnthropicErrorObject(type=error_type(status), message=message)
    if code in _DETAILED:
        error.details = AnthropicErrorDetails(error_code=code)
    return AnthropicError(type="error", error=error, request_id=request_id).to_json()
