"""The network policy, over a transport of the test: nothing leaves the process."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import httpcore
import httpx
import pytest
from programs_port import Ports

from quire.core.errors import Forbidden, InvalidArgument, ProgramError
from quire.programs.api import connect_api
from quire.programs.services.http_clients import TenantClients
from quire.programs.services.network import Network, NetworkPolicy, new_client
from quire.programs.services.pinned_transport import PinnedTransport, trusted_tls

Handler = Callable[[httpx.Request], httpx.Response]


def network(
    handler: Handler, policy: NetworkPolicy | None = None, addresses: tuple[str, ...] = ()
) -> Network:
    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    client = httpx.AsyncClient(transport=httpx.MockTransport(handler))
    return Network(client, policy, resolve)


async def test_get_and_post_through_the_api(ports: Ports) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        body = request.method + " " + request.headers.get("x-a", "-") + " "
        return httpx.Response(201, text=body + request.content.decode(), headers={"x-b": "2"})

    api = connect_api(ports.connect, network=network(handler))
    got = await api.http_get("http://host/", headers={"x-a": "1"})
    assert (got, got.status, got.headers["x-b"], got.ok) == ("GET 1 ", 201, "2", True)
    posted = await api.http_post("http://host/", "é")
    assert posted == "POST - é"
    api.close()
    alone = connect_api(ports.connect)
    with pytest.raises(Forbidden, match="no network"):
        await alone.http_get("http://host/")
    alone.close()


async def test_answers_are_text_and_json() -> None:
    replies = network(lambda request: httpx.Response(404, json={"a": [1]}))
    reply = await replies.request("GET", "http://host/")
    assert (reply.json(), reply.ok) == ({"a": [1]}, False)
    plain = await network(lambda _: httpx.Response(200, text="hi")).request("GET", "http://host/")
    with pytest.raises(InvalidArgument, match="not JSON"):
        plain.json()


@pytest.mark.parametrize("url", ["", "host/path", "ftp://host/", "file:///etc/passwd", "http://"])
async def test_only_http_urls(url: str) -> None:
    with pytest.raises(InvalidArgument, match="URL"):
        await network(lambda _: httpx.Response(200)).request("GET", url)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("api.example.org", True),
        ("API.example.org", True),
        ("deep.api.example.org", False),
        ("data.example.com", True),
        ("a.b.example.com", True),
        ("example.com", False),
        ("badexample.com", False),
        ("localhost", False),
    ],
)
async def test_the_allow_list(host: str, allowed: bool) -> None:
    policy = NetworkPolicy(hosts=("api.example.org", "*.example.com"))
    replies = network(lambda _: httpx.Response(200, text="ok"), policy)
    if allowed:
        assert await replies.request("GET", f"http://{host}/") == "ok"
    else:
        with pytest.raises(Forbidden, match="not allowed"):
            await replies.request("GET", f"http://{host}/")


def test_a_star_allows_any_host() -> None:
    assert NetworkPolicy(hosts=("*",)).allows_host("anything.example")


@pytest.mark.parametrize(
    "addresses",
    [
        ("127.0.0.1",),
        ("10.1.2.3",),
        ("169.254.169.254",),
        ("0.0.0.0",),
        ("224.0.0.1",),
        ("::1",),
        ("::ffff:127.0.0.1",),
        ("::127.0.0.1",),
        ("64:ff9b::a9fe:a9fe",),  # NAT64 and 6to4 of 169.254.169.254
        ("2002:a9fe:a9fe::1",),
        ("fec0::1",),
        ("fe80::1%eth0",),
        ("8.8.8.8", "192.168.0.1"),
        (),
    ],
)
async def test_private_addresses_are_refused_to_the_untrusted(addresses: tuple[str, ...]) -> None:
    policy = NetworkPolicy(allow_private=False)
    replies = network(lambda _: httpx.Response(200), policy, addresses)
    with pytest.raises(Forbidden, match="private addresses"):
        await replies.request("GET", "http://looks.fine/")


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_public_addresses_are_allowed(address: str) -> None:
    assert NetworkPolicy(allow_private=False).allows_address(address)


class Sockets(httpcore.AsyncNetworkBackend):
    """Connections that answer each request; notes where they go, whose certificate they ask for,
    and what they trust."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.trusted: list[ssl.SSLContext] = []

    async def connect_tcp(self, host: str, port: int, *_: object) -> httpcore.AsyncNetworkStream:
        self.opened.append(f"{host}:{port}")
        return Stream(self)


class Stream(httpcore.AsyncMockStream):
    def __init__(self, sockets: Sockets) -> None:
        super().__init__([b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"] * 10)
        self._sockets = sockets

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        self._sockets.opened[-1] += f" {server_hostname}"
        self._sockets.trusted.append(ssl_context)
        return self


async def test_a_connection_goes_to_the_checked_address_and_belongs_to_one_host() -> None:
    """Hosts behind one proxy have one address: a connection is for the name that it was made for,
    whose certificate was checked, and nobody else's request goes through it."""

    async def resolve(host: str, port: int) -> list[str]:
        return ["93.184.216.34"]

    sockets = Sockets()
    policy = NetworkPolicy(allow_private=False)
    async with new_client(PinnedTransport(httpx.Limits(), sockets)) as client:
        replies = Network(client, policy, resolve)
        for host in ("one.example:8443", "two.example", "one.example:8443", "two.example"):
            assert await replies.request("GET", f"https://{host}/") == "ok"
    assert sockets.opened == ["93.184.216.34:8443 one.example", "93.184.216.34:443 two.example"]


async def test_certificates_are_read_once_before_the_first_connection_that_needs_them() -> None:
    made: list[ssl.SSLContext] = []
    trusted = trusted_tls()

    def tls() -> ssl.SSLContext:
        made.append(trusted())
        return made[-1]

    sockets = Sockets()
    for _ in range(2):
        num_made = len(made)
        async with new_client(PinnedTransport(httpx.Limits(), sockets, tls)) as client:
            assert (await client.get("http://host/")).text == "ok"
            assert len(made) == num_made
            assert (await client.get("https://host/")).text == "ok"
    assert sockets.opened == ["host:80", "host:443 host"] * 2
    (context,) = {*made, *sockets.trusted}
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.cert_store_stats()["x509_ca"] > 10


async def test_a_host_header_of_the_programs_own_is_not_sent() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=request.headers["host"])

    replies = network(handler)
    assert await replies.request("GET", "http://a:81/", headers={"host": "b"}) == "a:81"


async def test_how_a_request_is_sent_is_the_hosts() -> None:
    """Two lengths in one request let a server take a part of it for the next one."""

    def handler(request: httpx.Request) -> httpx.Response:
        said = [name for name in ("content-length", "transfer-encoding") if name in request.headers]
        return httpx.Response(200, text=f"{said} {request.headers['accept-encoding']}")

    replies = network(handler)
    harmless = {"Content-Length": "2", "Connection": "close", "Accept-Encoding": "identity"}
    answer = await replies.request("POST", "http://host/", content=b"ab", headers=harmless)
    assert answer == "['content-length'] identity"
    assert await replies.request("GET", "http://host/") == "[] gzip, deflate"
    for name, value in (
        ("Transfer-Encoding", "chunked"),
        ("content-length", "3"),
        ("Content-length ", "+2"),
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("TE", "trailers"),
    ):
        with pytest.raises(InvalidArgument, match="leave"):
            await replies.request("POST", "http://host/", content=b"ab", headers={name: value})
        with pytest.raises(InvalidArgument, match="leave"):
            await replies.open("POST", "http://host/", content=b"ab", headers={name: value})


async def test_where_a_private_name_is_stays_unsaid() -> None:
    policy = NetworkPolicy(allow_private=False)
    replies = network(lambda _: httpx.Response(200), policy, ("10.20.30.40",))
    with pytest.raises(Forbidden) as refused:
        await replies.request("GET", "http://db.internal/")
    assert "10.20" not in refused.value.message


async def test_tenants_have_connections_of_their_own() -> None:
    async with TenantClients() as clients:
        one, other = clients.of("one"), clients.of("other")
        assert one is clients.of("one")
        pools = [client._transport._pool for client in (one, other)]
        assert pools[0] is not pools[1]
    assert one.is_closed
    assert other.is_closed


async def test_redirects_obey_the_policy_and_lose_secrets() -> None:
    seen: list[tuple[str, str, str | None]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, request.url.path, request.headers.get("authorization")))
        if request.url.path == "/":
            return httpx.Response(303, headers={"location": "http://two.example/next"})
        if request.url.path == "/out":
            return httpx.Response(302, headers={"location": "http://evil/"})
        if request.url.path == "/loop":
            return httpx.Response(307, headers={"location": "/loop"})
        return httpx.Response(200, text="there")

    replies = network(handler, NetworkPolicy(hosts=("one.example", "two.example")))
    headers = {"authorization": "secret"}
    url = "http://one.example"
    assert await replies.request("POST", f"{url}/", content=b"x", headers=headers) == "there"
    assert seen == [("POST", "/", "secret"), ("GET", "/next", None)]
    with pytest.raises(Forbidden, match="'evil'"):
        await replies.request("GET", f"{url}/out")
    with pytest.raises(ProgramError, match="redirects more than 5 times"):
        await replies.request("GET", f"{url}/loop")


@pytest.mark.parametrize(
    ("url", "target", "is_told"),
    [
        ("http://host/", "/next", True),
        ("http://host/", "https://host/next", True),
        ("https://host/", "http://host/next", False),
        ("http://host/", "http://host:8080/next", False),
        ("http://host:8080/", "https://host/next", False),
    ],
)
async def test_secrets_stay_with_their_server(url: str, target: str, is_told: bool) -> None:
    seen: list[str | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        if request.url.path == "/":
            return httpx.Response(302, headers={"location": target})
        return httpx.Response(200)

    await network(handler).request("GET", url, headers={"authorization": "secret"})
    assert seen == ["secret", "secret" if is_told else None]


async def test_cookies_are_kept_for_nobody() -> None:
    """All programs of a host, of whichever tenant, share its client."""
    seen: list[str | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("cookie"))
        return httpx.Response(200, headers={"set-cookie": "session=mine; Path=/"})

    async with new_client(httpx.MockTransport(handler)) as client:
        shared = Network(client)
        await shared.request("GET", "http://host.example/")
        await shared.request("GET", "http://host.example/")
        own = {"cookie": "given=1"}
        await shared.request("GET", "http://host.example/", headers=own)
        assert seen == [None, None, "given=1"]
        assert client.timeout == httpx.Timeout(None)  # the policy's are the only limits


@pytest.mark.parametrize("charset", ["hex", "idna", "punycode", "base64", "no-such"])
async def test_a_charset_that_is_none_harms_nobody(charset: str) -> None:
    headers = {"content-type": f"text/plain; charset={charset}"}
    replies = network(lambda _: httpx.Response(200, content="ä".encode(), headers=headers))
    assert await replies.request("GET", "http://host/") == "ä"
    headers["content-type"] = "text/plain; charset=latin-1"
    assert await replies.request("GET", "http://host/") == "Ã¤"


async def test_a_whole_answer_may_have_8_mib() -> None:
    whole = network(lambda _: httpx.Response(200, content=bytes(8 << 20)))
    assert len(await whole.request("GET", "http://host/")) == 8 << 20
    more = network(lambda _: httpx.Response(200, content=bytes((8 << 20) + 1)))
    with pytest.raises(InvalidArgument, match="larger than 8388608 bytes"):
        await more.request("GET", "http://host/")


async def test_limits_and_failures() -> None:
    large = network(lambda _: httpx.Response(200, text="x" * 100), NetworkPolicy(max_body_bytes=99))
    with pytest.raises(InvalidArgument, match="larger than 99 bytes"):
        await large.request("GET", "http://host/")

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(ProgramError, match="ConnectError: refused"):
        await network(refuse).request("GET", "http://host/")

    async def hang(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    client = httpx.AsyncClient(transport=httpx.MockTransport(hang))
    with pytest.raises(ProgramError, match="no response within 0"):
        await Network(client, NetworkPolicy(timeout_s=0)).request("GET", "http://host/")
