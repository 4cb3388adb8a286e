"""HTTP requests of programs, under a policy.

Owns the host allow-list, the limits and the refusal of private addresses. The HTTP client belongs
to the host and is passed to the constructor.
"""

from __future__ import annotations

import asyncio
import codecs
import ipaddress
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from quire.core.errors import Forbidden, InvalidArgument, ProgramError, QuotaExceeded
from quire.programs.capabilities import Capabilities, host_within
from quire.programs.services.pinned import pinned
from quire.programs.services.request_headers import ACCEPTED_CODINGS, checked_headers

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Addresses of a host name and port."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_SLOW_CODECS = frozenset({"idna", "punycode"})
"""Decoding a few megabytes with these takes hours."""


def new_client(transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """An HTTP client whose connections several programs share.

    ``Network`` follows redirects under its policy and has the only time limits. No cookie is kept,
    because it would be sent with the next request to the same host by any program.
    """
    # imported late, because guests have this module but no sockets
    from quire.programs.services.pinned_transport import PinnedTransport

    return httpx.AsyncClient(
        transport=transport or PinnedTransport(),
        follow_redirects=False,
        trust_env=False,
        timeout=None,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    )


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """``hosts``: names that may be reached, ``*.example.org`` for subdomains, ``*`` and ``None``:
    any.

    ``allow_private``: allow loopback, link-local and private addresses; turn it off for untrusted
    programs. ``max_redirects``: each is checked under the same policy. ``timeout_s``: for a whole
    request, and for each part of a streamed response, which is limited to ``max_stream_bytes`` and
    ``max_stream_s`` in total.
    """

    hosts: tuple[str, ...] | None = None
    allow_private: bool = True
    timeout_s: float = 30.0
    max_body_bytes: int = 8 << 20
    max_redirects: int = 5
    max_stream_bytes: int = 256 << 20
    max_stream_s: float = 600.0

    def allows_host(self, host: str) -> bool:
        host = host.lower().rstrip(".")
        if self.hosts is None:
            return True
        return any(host_within(host, pattern) for pattern in self.hosts)

    def allows_address(self, address: str) -> bool:
        return self.allow_private or _is_public(address)


def _is_public(address: str) -> bool:
    """Whether ``address``, and the IPv4 address that a gateway would derive from it, are public
    unicast addresses."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if found in _NAT64 or int(found) >> 32 == 0:  # the latter: IPv4-compatible
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if found.is_site_local or (inner is not None and not inner.is_global):
            return False
    return found.is_global and not found.is_multicast


class HttpReply(str):
    """The text of a response (in Pie ``http_get`` returns a string) with its ``status`` and
    ``headers``."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def of(cls, response: httpx.Response, body: bytes) -> HttpReply:
        text = _text(body, response.encoding or "utf-8")
        return cls.made(text, response.status_code, dict(response.headers), body)

    @classmethod
    def made(cls, text: str, status: int, headers: Mapping[str, str], body: bytes) -> HttpReply:
        reply = cls(text)
        reply.status, reply.headers, reply.body = status, headers, body
        return reply

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body as JSON; raises ``InvalidArgument`` if it is not JSON."""
        try:
            return json.loads(self)
        except ValueError as exc:
            raise InvalidArgument(f"the response is not JSON: {exc}") from exc


def _text(body: bytes, charset: str) -> str:
    """Decode ``body``. ``charset`` comes from the server: unknown and slow codecs are not used."""
    try:
        if codecs.lookup(charset).name not in _SLOW_CODECS:
            return body.decode(charset, "replace")
    except (LookupError, ValueError):
        pass
    return body.decode("utf-8", "replace")


async def resolve_host(host: str, port: int) -> list[str]:
    """Addresses of ``host`` from the system's resolver."""
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in entries]


class Network:
    """HTTP under a policy. ``client`` is used, not closed; it must not follow redirects itself."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        policy: NetworkPolicy | None = None,
        resolve: Resolve = resolve_host,
    ) -> None:
        self._client = client
        self._policy = policy or NetworkPolicy()
        self._resolve = resolve

    def within(self, hosts: tuple[str, ...]) -> Network:
        """The same network for a program whose manifest names ``hosts``: no others are reached."""
        both = Capabilities(hosts=hosts).narrowed(Capabilities(hosts=self._policy.hosts))
        return Network(self._client, replace(self._policy, hosts=both.hosts), self._resolve)

    async def request(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        """Send one request, following redirects; see ``Api.http_get`` for the errors."""
        with _translated(f"{method} {url}", self._policy.timeout_s):
            async with asyncio.timeout(self._policy.timeout_s):
                response = await self._follow(method, _parse(url), content, headers)
                try:
                    return HttpReply.of(response, await self._body(response))
                finally:
                    await response.aclose()

    async def open(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpStream:
        """Send one request and stream its response; see ``Api.http_stream`` for the errors."""
        what = f"{method} {url}"
        with _translated(what, self._policy.timeout_s):
            async with asyncio.timeout(self._policy.timeout_s):
                response = await self._follow(method, _parse(url), content, headers)
        return HttpStream(what, response, self._policy)

    async def _follow(
        self,
        method: str,
        url: httpx.URL,
        content: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> httpx.Response:
        """The first response that is not a redirect, with its body unread; the caller closes it."""
        origin = url
        if headers is not None:
            headers = checked_headers(headers, len(content or b""))
        for _ in range(self._policy.max_redirects + 1):
            address = await self._checked(url)
            request = self._client.build_request(method, url, content=content, headers=headers)
            request.headers["host"] = url.netloc.decode("ascii")
            if not _names(headers, "accept-encoding"):
                request.headers["accept-encoding"] = ACCEPTED_CODINGS
            with pinned(address):
                response = await self._client.send(request, stream=True, follow_redirects=False)
            if not response.has_redirect_location:
                return response
            location = response.headers["location"]
            await response.aclose()
            url = _parse(str(url.join(location)))
            if response.status_code in (301, 302, 303) and method != "GET":
                method, content = "GET", None
            if not _may_know_secrets(origin, url):
                headers = None
        raise ProgramError(f"{origin} redirects more than {self._policy.max_redirects} times")

    async def _checked(self, url: httpx.URL) -> str | None:
        """The address to connect to for ``url``; ``None``: any address of its host.

        Raises:
            Forbidden: the policy does not allow the host or its addresses.
        """
        if not self._policy.allows_host(url.host):
            raise Forbidden(
                f"host {url.host!r} is not allowed for this program: name it in "
                "@inferlet(hosts=[...])"
            )
        if self._policy.allow_private:
            return None
        port = url.port or (443 if url.scheme == "https" else 80)
        addresses = await self._resolve(url.host, port)
        if not addresses or not all(self._policy.allows_address(entry) for entry in addresses):
            # does not name the addresses, which would reveal the node's network to the program
            raise Forbidden(
                f"host {url.host!r} has no address, or a private one: private addresses are "
                "refused to this program"
            )
        return addresses[0]

    async def _body(self, response: httpx.Response) -> bytes:
        body = bytearray()
        async for part in _decoded(response):
            body += part
            if len(body) > self._policy.max_body_bytes:
                raise InvalidArgument(
                    f"the response of {response.url} is larger than "
                    f"{self._policy.max_body_bytes} bytes, the limit of this program"
                )
        return bytes(body)


class HttpStream:
    """A response that is read as it arrives. The caller must ``close`` it. Belongs to the client's
    loop."""

    def __init__(self, what: str, response: httpx.Response, policy: NetworkPolicy) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = dict(response.headers)
        self._what = what
        self._response = response
        self._policy = policy
        self._parts = _decoded(response)
        self._ends_s = asyncio.get_running_loop().time() + policy.max_stream_s
        self._num_bytes = 0
        self._closed = False

    async def read(self) -> bytes | None:
        """The next bytes, at least one; ``None`` at the end. A read that fails or is cancelled ends
        the stream."""
        if self._closed:
            return None
        policy = self._policy
        left_s = self._ends_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise QuotaExceeded(
                f"{self._what}: the response takes more than {policy.max_stream_s:g} s, the limit "
                "of this program"
            )
        try:
            part = await self._next(min(left_s, policy.timeout_s))
        except BaseException:
            await self.close()
            raise
        if part is None:
            await self.close()
        return part

    async def _next(self, limit_s: float) -> bytes | None:
        with _translated(self._what, limit_s):
            async with asyncio.timeout(limit_s):
                part = await anext(self._parts, None)
        if part is not None:
            self._num_bytes += len(part)
            if self._num_bytes > self._policy.max_stream_bytes:
                raise QuotaExceeded(
                    f"{self._what}: the response has more than {self._policy.max_stream_bytes} "
                    "bytes, the limit of this program"
                )
        return part

    async def close(self) -> None:
        """End the response. Idempotent."""
        if not self._closed:
            self._closed = True
            await self._response.aclose()


async def _decoded(response: httpx.Response) -> AsyncIterator[bytes]:
    """The decoded body. Yields to the loop between two pieces, so that time and size limits hold
    even while a small input is decompressed."""
    # imported late, because guests have this module but receive decoded responses
    from quire.programs.services.content_coding import ContentDecoder

    what = f"{response.request.method} {response.url}"
    decoder = ContentDecoder(what, response.headers.get("content-encoding", ""))
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    async for data in stream:
        for part in decoder.feed(data):
            yield part
            await asyncio.sleep(0)
    decoder.end()


def _names(headers: Mapping[str, str] | None, wanted: str) -> bool:
    return any(name.lower() == wanted for name in headers or ())


@contextmanager
def _translated(what: str, limit_s: float) -> Iterator[None]:
    """Raise the HTTP client's errors as ``ProgramError``."""
    try:
        yield
    except TimeoutError as exc:
        raise ProgramError(f"{what}: no response within {limit_s:g} s") from exc
    except (httpx.HTTPError, OSError) as exc:
        raise ProgramError(f"{what} failed: {type(exc).__name__}: {exc}") from exc


def _may_know_secrets(origin: httpx.URL, url: httpx.URL) -> bool:
    """Whether headers with credentials may be sent to ``url``: only to the original server, and
    never with less protection."""
    if origin.host != url.host:
        return False
    is_same = (origin.scheme, origin.port) == (url.scheme, url.port)
    is_safer = (origin.scheme, url.scheme) == ("http", "https")
    return is_same or (is_safer and origin.port is None and url.port is None)


def _parse(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as exc:
        raise InvalidArgument(f"{url!r} is not a URL: {exc}") from exc
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidArgument(f"{url!r} is not an http:// or https:// URL with a host")
    return parsed
