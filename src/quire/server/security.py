"""Access: API keys, Host and Origin, the request id. Pure ASGI, before any route.

Decides which connection reaches a route, for HTTP and WebSocket. Must not know what the routes do.
Its results are in ``scope["state"]``: ``request_id`` and ``tenant``.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import uuid
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.core.config import ServerConfig, TenantConfig
from quire.core.errors import CapacityError, Forbidden, QuireError, Unauthorized
from quire.core.ids import TenantId
from quire.server.errors.errors import response_of, status_of
from quire.server.errors.refusals import RefusalCounter, note, tell_refusal
from quire.server.page import is_of_page

OPEN_PATHS = frozenset({"/health", "/ready", "/ping"})
"""Routes that need no API key, so that an orchestrator can probe them."""

_HOST = re.compile(r"[^\s/?#@\\]+")
"""Only a host and its port, no other part of a URL: in ``evil.example@localhost`` the first part is
a user."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class Authenticator:
    """Finds the tenant of an API key. Without any key configured every caller is the first tenant.

    All keys are compared on every call, by digest and in constant time, so that neither the
    position nor the length of a key shows in the time taken.
    """

    def __init__(self, tenants: Sequence[TenantConfig]) -> None:
        self._keys = [(_digest(key), tenant.id) for tenant in tenants for key in tenant.api_keys]
        self._default = tenants[0].id

    def tenant_of(self, headers: Headers) -> TenantId:
        """Return the tenant whose key the request carries (``Authorization: Bearer`` or
        ``x-api-key``).

        Raises:
            Unauthorized: keys are configured and none of them was sent.
        """
        if not self._keys:
            return self._default
        scheme, _, token = headers.get("authorization", "").partition(" ")
        sent = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest, found = _digest(sent), None
        for key, tenant in self._keys:
            if hmac.compare_digest(key, digest):
                found = tenant
        if found is None:
            what = "the API key is not known here" if sent else "this node asks for an API key"
            raise Unauthorized(f"{what}: send one as 'Authorization: Bearer KEY'")
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class OriginPolicy:
    """Refuses foreign ``Host`` and ``Origin`` headers (DNS rebinding, cross-site requests).

    A Host is allowed if it is an IP address (which cannot be rebound), ``localhost``, the
    configured host or one of ``allowed_hosts`` (``*``: any). An Origin is allowed if it is the
    server's own or one of ``cors_origins`` (``*``: any).
    """

    def __init__(self, config: ServerConfig) -> None:
        self._hosts = {"localhost", config.host.lower(), *map(str.lower, config.allowed_hosts)}
        self._origins = {origin.rstrip("/").lower() for origin in config.cors_origins}

    def check(self, headers: Headers, http_version: str = "1.1") -> None:
        """Check the Host and Origin headers.

        Raises:
            Forbidden: the Host or the Origin is not allowed. HTTP/1.0 has no
                Host, and browsers do not use it.
        """
        hosts = headers.getlist("host")
        if len(hosts) > 1:  # a proxy before this server may have checked another one
            raise Forbidden(f"the request has {len(hosts)} Host headers: send one")
        host = hosts[0] if hosts else ""
        name = _host_name(host)
        is_known = "*" in self._hosts or name in self._hosts or _is_address(name)
        if not is_known and (hosts or http_version != "1.0"):
            raise Forbidden(
                f"the Host header {host[:100]!a} is not served here: "
                "add the name to allowed_hosts (--allowed-host)"
            )
        origin = headers.get("origin")
        if origin is not None and not self._is_known_origin(origin, host):
            raise Forbidden(
                f"the Origin {origin[:100]!a} may not call this server: "
                "add it to cors_origins (--cors-origin)"
            )

    def _is_known_origin(self, origin: str, host: str) -> bool:
        origin = origin.rstrip("/").lower()
        own = origin in (f"http://{host.lower()}", f"https://{host.lower()}")
        return own or "*" in self._origins or origin in self._origins


def _host_name(host: str) -> str:
    if not _HOST.fullmatch(host):
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class EdgeMiddleware:
    """The outermost layer: gives each request its id, checks Host and Origin, limits the number of
    running requests.

    A client's own ``x-request-id`` is kept if it is short and printable; every response has one,
    also that of a refused request.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        origins: OriginPolicy,
        max_requests: int,
        refusals: RefusalCounter,
    ) -> None:
        self._app = app
        self._origins = origins
        self._max_requests = max_requests
        self._refusals = refusals
        self._num_running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] in _STARTS:
                MutableHeaders(scope=message)["x-request-id"] = request_id
                status = message.get("status", 0)
                if status >= HTTPStatus.BAD_REQUEST and scope["path"] not in OPEN_PATHS:
                    tell_refusal(scope, status, self._refusals)
            await send(message)

        try:
            self._origins.check(headers, scope.get("http_version", "1.1"))
            self._check_load(scope["path"])
        except QuireError as error:
            await refuse(error, scope, receive, send_with_id)
            return
        self._num_running += 1
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._num_running -= 1

    def _check_load(self, path: str) -> None:
        if self._num_running >= self._max_requests and path not in OPEN_PATHS:
            raise CapacityError(
                f"{self._num_running} requests are running, the most that this server takes: "
                "try again or raise --max-requests"
            )


class KeyMiddleware:
    """Lets only clients with a known API key pass, and stores their tenant in the scope's state."""

    def __init__(self, app: ASGIApp, *, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and not _is_open(scope):
            try:
                tenant = self._authenticator.tenant_of(Headers(scope=scope))
            except Unauthorized as error:
                await refuse(error, scope, receive, send)
                return
            scope["state"]["tenant"] = tenant
        await self._app(scope, receive, send)


def _is_open(scope: Scope) -> bool:
    path = scope["path"]
    return path in OPEN_PATHS or (scope["type"] == "http" and is_of_page(path))


_STARTS = ("http.response.start", "websocket.http.response.start", "websocket.accept")


def _request_id(headers: Headers) -> str:
    sent = headers.get("x-request-id", "")
    return sent if _REQUEST_ID.fullmatch(sent) else f"req_{uuid.uuid4().hex}"


async def refuse(error: QuireError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer before the route is reached: with a response, or for WebSockets with a refused
    handshake."""
    note(scope, error.code, error.message)
    if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
        await response_of(error)(scope, receive, send)
    else:
        code = 1008 if status_of(error) < 500 else 1011
        await send({"type": "websocket.close", "code": code, "reason": error.message[:120]})
