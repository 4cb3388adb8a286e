"""Every error as a response: status, headers and the body ``{"error": {...}}``.

Owns the map from the exception tree to HTTP. Must not know any route. The body has OpenAI's four
fields: ``message``, ``type`` (by status), ``param`` (the offending field, or null) and ``code``
(the exception's stable code).

Official clients retry 408, 409, 429 and 5xx automatically. If a retry is useless or would run a
program twice, the response has ``x-should-retry: false``; if it is safe, ``retry-after``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.core.errors import (
    AccessError,
    AlreadyExists,
    CapacityError,
    ConfigError,
    DeadlineExceeded,
    Draining,
    EngineLost,
    MailboxClosed,
    ModelNotFound,
    PageLost,
    PoolExhausted,
    ProgramCancelled,
    QueuePoisoned,
    QuireError,
    QuotaExceeded,
    RequestError,
    TransferFailed,
    Unauthorized,
    UnknownHandle,
)
from quire.server.errors.refusals import note
from quire.server.errors.unknown_fields import fields_of
from quire.server.errors.validation_errors import problem_of
from quire.server.errors.wrong_paths import meant_by, methods_of, of_another_service

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1
"""Value of ``retry-after``: the pool and the queues turn over within about a second."""

_STATUS: tuple[tuple[type[QuireError], int], ...] = (
    (ModelNotFound, 404),
    (UnknownHandle, 404),
    (AlreadyExists, 409),
    (RequestError, 400),
    (Unauthorized, 401),
    (AccessError, 403),
    (QuotaExceeded, 429),
    (PoolExhausted, 503),
    (Draining, 503),
    (CapacityError, 503),
    (EngineLost, 503),
    (TransferFailed, 503),
    (PageLost, 503),
    (ProgramCancelled, 409),
    (DeadlineExceeded, 504),
    (MailboxClosed, 409),
    (QueuePoisoned, 500),
    (ConfigError, 501),
    (QuireError, 500),
)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_implemented_error",
    503: "service_unavailable_error",
}

_CODES = {404: "not_found", 405: "method_not_allowed", 408: "request_timeout"}


class HttpError(HTTPException):
    """An error of the HTTP edge itself, with the status that only the edge knows (408, 413).

    ``param`` names the offending field of the body or query.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.code = code
        self.param = param


def status_of(error: QuireError) -> int:
    """Return the HTTP status of ``error``: that of the first class in the table of which it is an
    instance."""
    return next(status for kind, status in _STATUS if isinstance(error, kind))


MAX_MESSAGE_CHARS = 16 << 10
"""The most characters of a message: it may quote what the client has sent, which may be as long as
a body."""
_NUM_LAST_CHARS = 1024
"""How many characters at the end of a long message are kept: the remedy stands there."""
_MAX_PARAM_CHARS = 200


def error_body(
    status: int, message: str, *, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """Return the error object. The middle of a ``message`` that is too long is left out; characters
    that UTF-8 cannot encode are escaped."""
    if len(message) > MAX_MESSAGE_CHARS:
        first, last = message[: MAX_MESSAGE_CHARS - _NUM_LAST_CHARS], message[-_NUM_LAST_CHARS:]
        message = f"{first} ... {last}"
    if param is not None:
        param = _sayable(param[:_MAX_PARAM_CHARS])
    return {
        "error": {
            "message": _sayable(message),
            "type": _TYPES.get(status, "server_error" if status >= 500 else _TYPES[400]),
            "param": param,
            "code": code or _CODES.get(status),
        }
    }


def _sayable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def body_of(error: QuireError) -> dict[str, Any]:
    """Return the error object, for responses and for ``data:`` lines of streams."""
    param = error.details.get("param")
    return error_body(
        status_of(error),
        error.message,
        code=error.code,
        param=param if isinstance(param, str) else None,
    )


def headers_of(error: QuireError) -> dict[str, str]:
    status = status_of(error)
    if error.retriable and status in (429, 503):
        return {"retry-after": str(RETRY_AFTER_S)}
    if status == 401:
        return {"www-authenticate": "Bearer"}
    if status >= 500 or status == 409:
        return {"x-should-retry": "false"}
    return {}


def response_of(error: QuireError) -> JSONResponse:
    return JSONResponse(body_of(error), status_of(error), headers_of(error))


def install_handlers(app: FastAPI, routes: Sequence[APIRoute]) -> None:
    """Answer every exception of a route in the same format. ``routes`` are all routes of the app,
    so that a 405 can list the methods of a path."""

    async def on_quire_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, QuireError)
        note(request.scope, error.code, error.message)
        if isinstance(error, ConfigError):  # the message has the remedy; the location adds nothing
            logger.error("request failed: %s", error.message)
        elif status_of(error) == 500:
            logger.error("request failed: %s", error.message, exc_info=error)
        return response_of(error)

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = error.code if isinstance(error, HttpError) else None
        param = error.param if isinstance(error, HttpError) else None
        message = error.detail or HTTPStatus(error.status_code).phrase
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        status = error.status_code
        elsewhere = of_another_service(request.url.path) if status == 405 else None
        if elsewhere is not None:
            status, headers = 404, {}
            message = f"no route {request.method} {request.url.path}: {elsewhere}"
        elif status == 405:
            headers["allow"] = ", ".join(methods_of(routes, request.url.path))
            message = wrong_method(request.method, request.url.path, headers["allow"])
        elif status == 404 and code is None:
            hint = meant_by(routes, request.url.path) or "/openapi.json has all of them"
            message = f"no route {request.method} {request.url.path}: {hint}"
        body = error_body(status, message, code=code, param=param)
        note(request.scope, body["error"]["code"], message)
        return JSONResponse(body, status, headers)

    async def on_validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fields = fields_of(routes, request.method, request.url.path)
        message, code, param = problem_of(error, fields)
        note(request.scope, code, message)
        return JSONResponse(error_body(400, message, code=code, param=param), 400)

    async def on_websocket_validation_error(websocket: WebSocket, error: Exception) -> None:
        assert isinstance(error, WebSocketRequestValidationError)
        message, code, param = problem_of(error)
        await refuse_websocket(websocket, HttpError(400, message, code=code, param=param))

    app.add_exception_handler(WebSocketRequestValidationError, on_websocket_validation_error)
    app.add_exception_handler(QuireError, on_quire_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)


def wrong_method(method: str, path: str, allowed: str) -> str:
    """Return the message of a 405; ``allowed``: the methods of ``path``, as the header has them."""
    return f"method {method} is not allowed on {path}: send {allowed}"


async def refuse_websocket(websocket: WebSocket, error: HttpError) -> None:
    """Answer the handshake with ``error``, in the usual format."""
    note(websocket.scope, error.code or "", error.detail)
    body = error_body(error.status_code, error.detail, code=error.code, param=error.param)
    await websocket.send_denial_response(JSONResponse(body, error.status_code))


def no_route(otherwise: ASGIApp) -> ASGIApp:
    """Return the fallback for unknown paths: WebSockets get a 404 like other requests (the
    framework refuses their handshake with a bare 403), ``otherwise`` answers the rest."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket" or "websocket.http.response" not in scope["extensions"]:
            await otherwise(scope, receive, send)
            return
        message = (
            f"no WebSocket at {scope['path'][:200]}: there is /v1/programs/{{program}}/attach; "
            "/openapi.json has the routes of plain HTTP"
        )
        body = error_body(404, message)
        note(scope, body["error"]["code"], message)
        await JSONResponse(body, 404)(scope, receive, send)

    return answer


_NOT_OURS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions that end a task or the process."""


class ErrorBoundary:
    """The layer around the routes: an unexpected exception is logged and becomes a 500 in the usual
    format."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        except _NOT_OURS:
            raise
        except BaseException:  # a panic of a Rust library is not an Exception
            if scope["type"] != "http" or started:
                raise
            request_id = scope["state"]["request_id"]
            logger.exception("request %s: unexpected error", request_id)
            message = f"an unexpected error; the server's log has it under request {request_id}"
            note(scope, "internal_error", message)
            body = error_body(500, message, code="internal_error")
            await JSONResponse(body, 500, {"x-should-retry": "false"})(scope, receive, send)
