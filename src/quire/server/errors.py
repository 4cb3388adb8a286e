"""Every error as a response: status, headers and the body ``{"error": {...}}``.

Owns the map from the exception tree to HTTP. Must not know any route. The body has OpenAI's four
fields: ``message``, ``type`` (by status), ``param`` (the offending field, or null) and ``code``
(the exception's stable code).

Official clients retry 408, 409, 429 and 5xx automatically. If a retry is useless or would run a
program twice, the response has ``x-should-retry: false``; if it is safe, ``retry-after``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
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
from quire.server.refusals import note
from quire.server.unknown_fields import fields_of, instead_of

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

_OBJECT_WANTED = frozenset({"model_type", "model_attributes_type", "dict_type"})
"""Pydantic's message for a value that is not a JSON object, which speaks of Python."""

_COMPARED = ("greater_than", "less_than", "int_from_float")
_OF_A_KIND = ("_type", "_parsing")
"""Pydantic's problems whose message does not tell the value."""

_MAX_MISTYPED_CHARS = 100

_CODES = {404: "not_found", 405: "method_not_allowed", 408: "request_timeout"}


class HttpError(HTTPException):
    """An error of the HTTP edge itself, with the status that only the edge knows (408, 413).

    ``param`` names the offending field of the body or query.
    """

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(status, message)
        self.code = code
        self.param = param


def status_of(error: QuireError) -> int:
    """The HTTP status of ``error``: that of the first class in the table that it is an instance
    of."""
    return next(status for kind, status in _STATUS if isinstance(error, kind))


def error_body(
    status: int, message: str, *, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    return {
        "error": {
            "message": message,
            "type": _TYPES.get(status, "server_error" if status >= 500 else _TYPES[400]),
            "param": param,
            "code": code or _CODES.get(status),
        }
    }


def body_of(error: QuireError) -> dict[str, Any]:
    """The error object, for responses and for ``data:`` lines of streams."""
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


def location_of(problem: Mapping[str, Any], body: Any) -> str | None:
    """The path of a validation error as clients write it: ``messages[0].content``.

    Pydantic's path also contains the alternatives of unions, which are not fields: only parts that
    ``body`` has are kept, and at the end the missing one.
    """
    path, value = "", body
    where, *parts = problem["loc"]
    for depth, part in enumerate(parts, 1):
        if isinstance(part, int):
            path += f"[{part}]"
            value = value[part] if isinstance(value, list) and part < len(value) else None
            continue
        is_missing = depth == len(parts) and problem["type"] == "missing"
        if where == "body" and not (isinstance(value, dict) and (part in value or is_missing)):
            continue
        path += f".{part}" if path else part
        value = value.get(part) if isinstance(value, dict) else None
    return path[:200] or None


def validation_body(error: RequestValidationError, fields: Sequence[str] = ()) -> dict[str, Any]:
    """The first problem in full, and the number of further ones.

    ``fields``: those that the body may have. Numbers are echoed; of other values only the kind is
    told, because texts belong to their sender.
    """
    problems = error.errors()
    first = problems[0]
    param = location_of(first, error.body)
    message = str(first["msg"]).removeprefix("Value error, ")
    if tuple(first["loc"]) == ("body",) and first["type"] != "value_error":
        message = "the body must be a JSON object, sent with content-type: application/json"
    elif first["type"] in _OBJECT_WANTED:
        message = "must be an object"
    elif first["type"] == "extra_forbidden":
        message = instead_of(param or "", fields)
    elif first["type"].startswith(_COMPARED) or first["type"].endswith(_OF_A_KIND):
        message += f", not {_given(first.get('input'))}"
    where = f"{param}: " if param else ""
    num_more = len(problems) - 1
    more = f" (and {num_more} more problem{'s' * (num_more > 1)})" if num_more else ""
    return error_body(400, f"{where}{message}{more}", code=_code_of(first["type"]), param=param)


def _given(value: Any) -> str:
    """``value`` in a message, by JSON's names."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    kinds: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
    return kinds.get(type(value), "null" if value is None else "that")


def _code_of(kind: str) -> str:
    return "unknown_parameter" if kind == "extra_forbidden" else "invalid_argument"


def install_handlers(app: FastAPI, routes: Sequence[APIRoute]) -> None:
    """Answer every exception of a route in the same format. ``routes`` are all routes of the app,
    so that a 405 can list the methods of a path."""

    async def on_quire_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, QuireError)
        note(request.scope, error.code, error.message)
        if isinstance(error, ConfigError):  # the message has the remedy: the place says nothing
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
        if error.status_code == 405:
            message = f"method {request.method} is not allowed on {request.url.path}"
            headers["allow"] = ", ".join(_allowed(routes, request.url.path))
        elif error.status_code == 404 and code is None:
            hint = _meant(routes, request.url.path) or "/openapi.json has all of them"
            message = f"no route {request.method} {request.url.path}: {hint}"
        body = error_body(error.status_code, message, code=code, param=param)
        note(request.scope, body["error"]["code"], message)
        return JSONResponse(body, error.status_code, headers)

    async def on_validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        body = validation_body(error, fields_of(routes, request.method, request.url.path))
        note(request.scope, body["error"]["code"], body["error"]["message"])
        return JSONResponse(body, 400)

    app.add_exception_handler(QuireError, on_quire_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)


def no_route(otherwise: ASGIApp) -> ASGIApp:
    """The fallback for unknown paths: WebSockets get a 404 like other requests (the framework
    refuses their handshake with a bare 403), ``otherwise`` answers the rest."""

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


def _meant(routes: Sequence[APIRoute], path: str) -> str | None:
    """A hint for a path that is nearly that of a route: base URLs are copied from other servers,
    and paths are mistyped."""
    if path == "/":
        return "/ui shows the node in a browser, /openapi.json has all routes"
    known = {route.path for route in routes}
    plain = path.rstrip("/")
    for meant in (plain, f"/v1{plain}", plain.removeprefix("/v1")):
        if meant != path and meant in known:
            return (
                f"there is {meant}; the base URL of OpenAI clients ends with /v1, that of "
                "Anthropic's has no path"
            )
    near = get_close_matches(plain[:_MAX_MISTYPED_CHARS], sorted(known), n=1, cutoff=0.9)
    return f"there is {near[0]}" if near else None


def _allowed(routes: Sequence[APIRoute], path: str) -> list[str]:
    """The router itself lists only the methods of the first route with the path."""
    fitting = [route for route in routes if route.path_regex.fullmatch(path)]
    same = [route for route in fitting if route.path == fitting[0].path]
    return sorted({method for route in same for method in route.methods or ()})


_NOT_OURS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions that end the process."""


class ErrorBoundary:
    """Around the routes: an unexpected exception is logged and becomes a 500 in the usual
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
