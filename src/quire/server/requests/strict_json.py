"""Reads a request body: limited in bytes and time, and parsed as strict JSON.

Owns the syntax of a body, before any schema is applied. Python's ``json`` accepts NaN, duplicate
keys, lone surrogates, integers of any length and nesting up to the recursion limit; each of these
has crashed or confused a server behind it, so each is refused here.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from quire.core.config import ServerConfig
from quire.server.errors.errors import HttpError

MAX_DEPTH = 64
"""Deepest nesting of arrays and objects in a body."""

MAX_INTEGER = 1 << 63
"""JSON integers stay below this magnitude."""

_QUERIES = "/v1/workflows/"
"""Paths of queries, whose bodies contain documents."""

_MAX_BYTES_AT_ONCE = 128 << 10
"""A longer body is read in a thread: this many bytes take about 5 ms."""


def strict_loads(body: bytes) -> Any:
    """Return the value of a JSON body.

    Raises:
        HttpError: 400; not UTF-8, not JSON, NaN or infinite numbers, duplicate keys, integers of
            more than 64 bits, NUL or lone surrogates in strings, nested deeper than ``MAX_DEPTH``.
    """
    try:
        value = json.loads(
            body.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as exc:
        raise _bad(f"the body is not UTF-8 (byte {exc.start})") from exc
    except RecursionError as exc:
        raise _bad(f"the body is nested deeper than {MAX_DEPTH} levels") from exc
    except json.JSONDecodeError as exc:
        raise _bad(f"the body is not valid JSON: {exc.msg} at character {exc.pos}") from exc
    except ValueError as exc:
        raise _bad("a number of the body has too many digits") from exc
    _check(value)
    return value


def strict_msgpack(body: bytes) -> Any:
    """Return the value of a msgpack body, with the checks of a JSON body.

    Raises:
        HttpError: 400; not msgpack, or what ``strict_loads`` refuses.
    """
    try:
        value = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise HttpError(
            400, f"the body is not valid msgpack: {exc}", code="invalid_msgpack"
        ) from exc
    except RecursionError as exc:
        raise _bad(f"the body is nested deeper than {MAX_DEPTH} levels") from exc
    _check(value)
    return value


def _bad(message: str) -> HttpError:
    return HttpError(400, message, code="invalid_json")


def _refuse_constant(name: str) -> Any:
    raise _bad(f"{name} is not a JSON number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = sorted(key for key, _ in pairs)
        twice = next(key for key, after in pairwise(keys) if key == after)
        raise _bad(f"the key {twice[:64]!a} occurs twice in one object")
    return value


def _check(root: Any) -> None:
    """Check a value level by level. Token ids come by the million, so a list of integers only is
    checked as a whole, without creating an object for each."""
    level, depth = [root], 0
    while level:
        below: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is int:
                _check_integers((value,))
            elif kind is str:
                _check_string(value)
            elif kind is float:
                if not math.isfinite(value):
                    raise _bad("a number of the body is too large for a 64-bit float")
            elif kind is list or kind is dict:
                if depth >= MAX_DEPTH:
                    raise _bad(f"the body is nested deeper than {MAX_DEPTH} levels")
                if kind is dict:
                    below += value
                    below += value.values()
                elif set(map(type, value)) == {int}:
                    _check_integers(value)
                else:
                    below += value
        level, depth = below, depth + 1


def _check_integers(values: Sequence[int]) -> None:
    if min(values) <= -MAX_INTEGER or max(values) >= MAX_INTEGER:
        raise _bad("an integer of the body needs more than 64 bits")


def _check_string(value: str) -> None:
    if "\0" in value:
        raise _bad("a string of the body contains a NUL character")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise _bad("a string of the body contains a lone surrogate") from exc


GENERATED_HEADER = "x-quire-generated"
MAX_GENERATED_BYTES = 8 << 20
_GENERATED = "generated"


def generated_of(request: Request) -> bytes:
    """Return the bytes before the body, whose number is in ``GENERATED_HEADER``."""
    found: bytes = request.scope.get("state", {}).get(_GENERATED, b"")
    return found


class StrictRequest(Request):
    """A request whose body is read within the limits of the server's configuration. The bytes that
    routers send before it (``server.going_on``) are not part of it."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await self._bounded_body()
        return self._body

    async def json(self) -> Any:
        body = await self.body()
        if len(body) <= _MAX_BYTES_AT_ONCE:
            return strict_loads(body)
        return await asyncio.to_thread(strict_loads, body)  # other streams go on

    async def msgpack(self) -> Any:
        """Return the value of a msgpack body."""
        return strict_msgpack(await self.body())

    async def _bounded_body(self) -> bytes:
        config = self.app.state.quire.config
        num_before = self._num_before()
        limit = body_limit(config, self.url.path) + num_before
        check_encoding(self.headers)
        length = self.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > limit:
            raise too_long(config, self.url.path)
        chunks = bytearray()
        try:
            async with asyncio.timeout(config.body_timeout_s):
                async for chunk in self.stream():
                    chunks += chunk
                    if len(chunks) > limit:
                        raise too_long(config, self.url.path)
        except TimeoutError as exc:
            raise HttpError(
                408, f"the body did not arrive within {config.body_timeout_s:g} s"
            ) from exc
        if num_before:
            self.scope.setdefault("state", {})[_GENERATED] = bytes(chunks[:num_before])
        return bytes(chunks[num_before:])

    def _num_before(self) -> int:
        told = self.headers.get(GENERATED_HEADER, "")
        return min(int(told), MAX_GENERATED_BYTES) if told.isdecimal() and len(told) < 10 else 0


def body_limit(config: ServerConfig, path: str) -> int:
    """Return the most bytes of a body sent to ``path``."""
    return config.max_query_bytes if path.startswith(_QUERIES) else config.max_body_bytes


def check_encoding(headers: Headers) -> None:
    """Raise ``HttpError`` 415 if the body has a content-encoding."""
    coding = headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        raise HttpError(
            415,
            f"the body has content-encoding {coding[:64]!a}, and none is read here: send the body "
            "as it is",
            code="request_body_encoding_unsupported",
        )


def too_long(config: ServerConfig, path: str) -> HttpError:
    """Return the refusal of a body beyond ``body_limit``."""
    option = "--max-query-bytes" if path.startswith(_QUERIES) else "--max-body-bytes"
    return HttpError(
        413,
        f"the body is longer than {body_limit(config, path)} bytes: send less or raise {option}",
        code="request_too_large",
    )


class StrictRoute(APIRoute):
    """A route that parses its body with ``strict_loads``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def strict_handler(request: Request) -> Response:
            return await handler(StrictRequest(request.scope, request.receive))

        return strict_handler
