"""Reads a client's request, within the limits of the router's configuration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from quire.cluster.requests.request import Request, Upload
from quire.core.config import ServerConfig
from quire.server.errors.errors import HttpError
from quire.server.requests.strict_json import body_limit, too_long

_UPLOADS = "/v1/files"
_UPLOAD_TIMEOUT_S = 900.0
_DROPPED = frozenset({b"x-request-id"})


async def read_request(scope: Scope, receive: Receive, config: ServerConfig) -> Request:
    """Return the request of ``scope`` with its body. The body of a file's upload is read later,
    while it is passed on.

    Raises:
        HttpError: 408, 413; the body comes too slowly or is too long.
    """
    headers = [pair for pair in scope["headers"] if pair[0] not in _DROPPED]
    request_id = scope["state"]["request_id"]
    headers.append((b"x-request-id", request_id.encode("latin-1")))
    path = scope.get("raw_path") or scope["path"].encode()
    query = scope["query_string"]
    target = (path + b"?" + query if query else path).decode("latin-1")
    request = Request(scope["method"], target, headers, b"", request_id)
    if scope["method"] in ("GET", "HEAD", "OPTIONS"):
        return request
    length = Headers(scope=scope).get("content-length", "")
    if request.path == _UPLOADS:
        known = int(length[:20]) if length.isdecimal() else None
        request.upload = Upload(_pieces(receive, config.body_timeout_s, _UPLOAD_TIMEOUT_S), known)
        return request
    limit = body_limit(config, request.path)
    if length.isdecimal() and int(length[:20]) > limit:
        raise too_long(config, request.path)
    body = bytearray()
    async for piece in _pieces(receive, config.body_timeout_s, config.body_timeout_s):
        body += piece
        if len(body) > limit:
            raise too_long(config, request.path)
    request.body = bytes(body)
    return request


async def _pieces(receive: Receive, idle_s: float, total_s: float) -> AsyncIterator[bytes]:
    """Yield the body as it arrives.

    Raises:
        HttpError: 408, or 400 where the client has left.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + total_s
    while True:
        try:
            async with asyncio.timeout_at(min(until_s, loop.time() + idle_s)):
                message = await receive()
        except TimeoutError as exc:
            raise HttpError(
                408, f"the body stalled for {idle_s:g} s, or took over {total_s:g} s"
            ) from exc
        if message["type"] == "http.disconnect":
            raise HttpError(400, "the client left before its body was here")
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return
