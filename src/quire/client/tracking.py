"""``track`` and ``program``: every call of an OpenAI client carries the program that it belongs to.

Owns the request hook of tracked HTTP clients, and the begin and end of sessions on the servers that
were called (docs/reference/http.md). ``programs`` finds the running program. A hook of the HTTP
client sees every request as it is sent: retries, streams and copies of the client included. Nothing
here makes a call fail: a failure is logged, and the call goes on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import httpx

from quire.client.programs import ProgramScope, ThreadScope, current_thread, enter, leave
from quire.core.errors import InvalidArgument

logger = logging.getLogger(__name__)

C = TypeVar("C")

TIMEOUT_S = 5.0
"""Limits each request about sessions: a call does not wait longer for its session."""

_KEYS = ("authorization", "x-api-key", "api-key")
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


def track(client: C) -> C:
    """Return ``client`` itself, whose calls are tagged from now on while a ``program`` is running.

    ``client`` is a client of the packages openai or anthropic, sync or async, or an HTTP client of
    httpx or httpx2 that is given to one (``http_client=``). Its copies (``with_options``) share the
    HTTP client and so are tracked too. Idempotent.

    Raises:
        InvalidArgument: it is neither.
    """
    http: Any = client if hasattr(client, "event_hooks") else getattr(client, "_client", None)
    if not hasattr(http, "event_hooks"):
        raise InvalidArgument(
            f"{type(client).__name__} is no client of openai, anthropic, httpx or httpx2: give an "
            "HTTP client that you have tracked to yours, as http_client=track(httpx.Client())"
        )
    hooks = http.event_hooks
    if not any(isinstance(hook, _Hook | _AsyncHook) for hook in hooks["request"]):
        hook = _AsyncHook(http) if hasattr(http, "aclose") else _Hook(http)
        http.event_hooks = {**hooks, "request": [*hooks["request"], hook]}
    return client


class program:  # noqa: N801 - it reads as a statement: with program("name")
    """A context whose calls are one program, which ends with it.

    A program inside another is its child. Programs of one ``name`` are of one kind: their lengths
    are learned together. ``priority`` (lower runs first) and ``deadline_s`` are
    those of ``POST /v1/sessions``. Use it once, as ``with`` or ``async with``.
    """

    def __init__(
        self, name: str, *, priority: int | None = None, deadline_s: float | None = None
    ) -> None:
        """Raise ``InvalidArgument`` if a header cannot contain ``name``."""
        if not 1 <= len(name) <= 128 or not name.isascii() or not name.isprintable():
            raise InvalidArgument(
                f"the program's name {name!r} must be 1 to 128 printable ASCII characters"
            )
        if name[0] in " ." or "/" in name:
            raise InvalidArgument(
                f"the program's name {name!r} begins with a space or dot, or has a slash: a path "
                "cannot hold it"
            )
        self._name = name
        given = {"kind": name, "priority": priority, "deadline_s": deadline_s}
        self._settings = {key: value for key, value in given.items() if value is not None}
        self._scope: ProgramScope | None = None

    @property
    def id(self) -> str:
        """The id of its session, which is new for each block."""
        if self._scope is None:
            raise InvalidArgument("a program has an id from the beginning of its block")
        return self._scope.id

    def __enter__(self) -> Self:
        if self._scope is not None:
            raise InvalidArgument(f"program {self._name!r} is used twice: make one for each block")
        self._scope = enter(self._name, self._settings)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        scope = self._left()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            _end(scope)
        else:  # a loop must not wait for a server
            threading.Thread(target=_end, args=(scope,), name="quire-session-end").start()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await _end_async(self._left())

    def _left(self) -> ProgramScope:
        assert self._scope is not None, "it was entered"
        leave(self._scope)
        return self._scope


@dataclass(frozen=True, slots=True)
class _Server:
    """A server that a tracked client has called: ``url`` is that of its ``/v1/sessions``."""

    url: str
    keys: dict[str, str]
    http: Any

    def path_of(self, scope: ProgramScope) -> str:
        return f"{self.url}/{quote(scope.id, safe='')}"

    @property
    def options(self) -> dict[str, Any]:
        return {"headers": self.keys, "timeout": TIMEOUT_S}


class _Hook:
    """The request hook of a sync HTTP client."""

    def __init__(self, http: Any) -> None:
        self._http = http

    def __call__(self, request: Any) -> None:
        thread = _thread_of(request)
        if thread is None:
            return
        for scope, server in _untold(thread, _server_of(request, self._http)):
            try:
                answer = self._http.post(server.url, json=_body(scope), **server.options)
            except Exception as error:
                _failed("begin", scope, server, error)
            else:
                _told(scope, server, answer)
        _tag(request, thread)


class _AsyncHook:
    """The request hook of an async HTTP client."""

    def __init__(self, http: Any) -> None:
        self._http = http

    async def __call__(self, request: Any) -> None:
        thread = _thread_of(request)
        if thread is None:
            return
        for scope, server in _untold(thread, _server_of(request, self._http)):
            try:
                answer = await self._http.post(server.url, json=_body(scope), **server.options)
            except Exception as error:
                _failed("begin", scope, server, error)
            else:
                _told(scope, server, answer)
        _tag(request, thread)


def _thread_of(request: Any) -> ThreadScope | None:
    """Return the thread of ``request``, if it is a call of a program and names no program
    itself."""
    if request.method != "POST" or "x-quire-program-id" in request.headers:
        return None
    if request.url.path.endswith("/v1/sessions"):
        return None
    return current_thread()


def _tag(request: Any, thread: ThreadScope) -> None:
    request.headers["x-quire-program-id"] = thread.program.id
    request.headers["x-quire-thread-id"] = thread.name
    if thread.parent is not None:
        request.headers["x-quire-parent-thread-id"] = thread.parent
    if thread.program.parent is not None:
        request.headers["x-quire-parent-id"] = thread.program.parent.id


def _server_of(request: Any, http: Any) -> _Server | None:
    parts = urlsplit(str(request.url))
    base, found, _ = parts.path.rpartition("/v1/")
    if not found:
        return None
    url = urlunsplit((parts.scheme, parts.netloc, f"{base}/v1/sessions", "", ""))
    keys = {name: request.headers[name] for name in _KEYS if name in request.headers}
    return _Server(url, keys, http)


def _untold(thread: ThreadScope, server: _Server | None) -> list[tuple[ProgramScope, _Server]]:
    """Return the programs that ``server`` does not know yet, the outermost first: a parent must be
    known before its child. If two threads report the same one, the second report changes
    nothing."""
    if server is None:
        return []
    return [(one, server) for one in thread.program.lineage() if server.url not in one.servers]


def _body(scope: ProgramScope) -> dict[str, Any]:
    named = {"id": scope.id, **scope.settings, "metadata": {"name": scope.name}}
    parent = scope.parent
    return named if parent is None else {**named, "parent": parent.id}


def _told(scope: ProgramScope, server: _Server, answer: Any) -> None:
    if answer.is_success:
        scope.servers[server.url] = server
        return
    if answer.status_code not in _RETRIED:
        scope.servers[server.url] = None  # the server has no sessions: there is nothing to end
    _failed("begin", scope, server, f"{answer.status_code} {answer.text[:500]}")


def _failed(what: str, scope: ProgramScope, server: _Server, error: object) -> None:
    logger.warning("program %s did not %s at %s: %s", scope.id, what, server.url, error)


def _end(scope: ProgramScope) -> None:
    for server in [one for one in scope.servers.values() if one is not None]:
        own = not hasattr(server.http, "aclose") and not server.http.is_closed
        try:
            delete = server.http.delete if own else httpx.delete
            _ended(scope, server, delete(server.path_of(scope), **server.options))
        except Exception as error:
            _failed("end", scope, server, error)


async def _end_async(scope: ProgramScope) -> None:
    for url, server in list(scope.servers.items()):
        if server is None or not hasattr(server.http, "aclose") or server.http.is_closed:
            continue
        del scope.servers[url]
        try:
            answer = await server.http.delete(server.path_of(scope), **server.options)
            _ended(scope, server, answer)
        except Exception as error:
            _failed("end", scope, server, error)
    if any(scope.servers.values()):
        await asyncio.to_thread(_end, scope)


def _ended(scope: ProgramScope, server: _Server, answer: Any) -> None:
    if not answer.is_success and answer.status_code != 404:  # 404: it has expired
        _failed("end", scope, server, f"{answer.status_code} {answer.text[:500]}")
