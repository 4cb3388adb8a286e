"""API keys, Host, Origin, CORS and request ids, over HTTP and WebSocket."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from scripted_server import RunningServer, running_server
from starlette.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from quire.core.config import ServerConfig, TenantConfig
from quire.core.errors import Forbidden, Unauthorized
from quire.core.ids import TenantId
from quire.server.security import Authenticator, OriginPolicy

TENANTS = (
    TenantConfig(TenantId("a"), api_keys=("key-a", "key-a2")),
    TenantConfig(TenantId("b"), api_keys=("key-b",)),
)
CONFIG = ServerConfig(
    cors_origins=("https://app.example",), drain_timeout_s=1.0, sandbox_upload=False
)


@pytest.fixture(scope="module")
def keyed() -> Iterator[RunningServer]:
    with running_server(CONFIG, TENANTS) as running:
        yield running


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        (bearer("key-a"), "a"),
        (bearer("key-a2"), "a"),
        (bearer("key-b"), "b"),
        ({"authorization": "bearer key-b"}, "b"),
        ({"x-api-key": "key-b"}, "b"),
    ],
)
def test_a_key_is_one_tenant(headers: dict[str, str], tenant: str) -> None:
    assert Authenticator(TENANTS).tenant_of(Headers(headers)) == tenant


@pytest.mark.parametrize(
    "headers", [{}, bearer(""), bearer("key"), bearer("key-a3"), {"authorization": "Basic key-a"}]
)
def test_other_keys_are_nobody(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthorized):
        Authenticator(TENANTS).tenant_of(Headers(headers))


def test_without_keys_everybody_is_the_first_tenant() -> None:
    tenants = (TenantConfig(TenantId("only")),)
    assert Authenticator(tenants).tenant_of(Headers(bearer("whatever"))) == "only"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/programs"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
        ("OPTIONS", "/v1/models"),
    ],
)
def test_every_route_but_health_asks_for_a_key(
    keyed: RunningServer, method: str, path: str
) -> None:
    response = httpx.request(method, keyed.url + path, timeout=60)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "unauthorized"
    assert "key-a" not in response.text
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/health", "/ready", "/ping"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_health_is_open(keyed: RunningServer, method: str, path: str) -> None:
    """Orchestrators ask with either method."""
    answer = httpx.request(method, keyed.url + path, timeout=60)
    assert answer.status_code == 200
    assert (answer.content == b"") is (method == "HEAD")
    assert int(answer.headers["content-length"]) > 0


def test_a_tenant_sees_its_own_programs_alone(keyed: RunningServer) -> None:
    launched = httpx.post(
        f"{keyed.url}/v1/programs",
        headers=bearer("key-a"),
        json={"program": "text_completion", "args": ["say x"]},
        timeout=60,
    ).json()
    path = f"{keyed.url}/v1/programs/{launched['id']}"
    assert httpx.get(path, headers=bearer("key-a"), timeout=60).status_code == 200
    assert httpx.get(path, headers=bearer("key-b"), timeout=60).status_code == 404
    listed = httpx.get(f"{keyed.url}/v1/programs", headers=bearer("key-b"), timeout=60).json()
    assert listed["data"] == []


def test_a_websocket_asks_for_a_key(keyed: RunningServer) -> None:
    url = f"ws://{keyed.host}:{keyed.port}/v1/programs/x/attach"
    with pytest.raises(InvalidStatus) as refused, connect(url):
        pass
    assert refused.value.response.status_code == 401
    with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers=bearer("key-a")):
        pass
    assert refused.value.response.status_code == 404


# -- Host and Origin -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "10.1.2.3", "LOCALHOST"]
)
def test_good_hosts(host: str) -> None:
    OriginPolicy(ServerConfig()).check(Headers({"host": host}))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "",
        "localhost.evil.example",
        "a:b:c",
        "[",
        "@",
        "evil.example@localhost",
        "localhost/x",
        "localhost#",
        "local host",
    ],
)
def test_foreign_hosts(host: str) -> None:
    with pytest.raises(Forbidden):
        OriginPolicy(ServerConfig()).check(Headers({"host": host}))


def test_two_hosts_are_refused_whatever_they_are() -> None:
    raw = [(b"host", b"localhost"), (b"host", b"localhost")]
    with pytest.raises(Forbidden, match="2 Host headers"):
        OriginPolicy(ServerConfig(allowed_hosts=("*",))).check(Headers(raw=raw))


def test_configured_hosts() -> None:
    OriginPolicy(ServerConfig(allowed_hosts=("Node.example",))).check(
        Headers({"host": "node.EXAMPLE:80"})
    )
    OriginPolicy(ServerConfig(allowed_hosts=("*",))).check(Headers({"host": "any.example"}))


@pytest.mark.parametrize(
    ("origin", "good"),
    [
        ("http://localhost:8000", True),
        ("https://localhost:8000", True),
        ("http://localhost:9000", False),
        ("https://evil.example", False),
        ("null", False),
        ("https://app.example", True),
        ("https://app.example.evil", False),
    ],
)
def test_origins(origin: str, good: bool) -> None:
    policy = OriginPolicy(CONFIG)
    headers = Headers({"host": "localhost:8000", "origin": origin})
    if good:
        policy.check(headers)
    else:
        with pytest.raises(Forbidden):
            policy.check(headers)


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "DELETE", "HEAD", "PATCH"])
@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
def test_every_method_is_checked(
    keyed: RunningServer, method: str, headers: dict[str, str]
) -> None:
    response = httpx.request(
        method, f"{keyed.url}/health", headers={**bearer("key-a"), **headers}, timeout=60
    )
    assert response.status_code == 403


def test_a_websocket_from_elsewhere_is_refused(keyed: RunningServer) -> None:
    url = f"ws://{keyed.host}:{keyed.port}/v1/programs/x/attach"
    headers = {**bearer("key-a"), "origin": "https://evil.example"}
    with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers=headers):
        pass
    assert refused.value.response.status_code == 403


def test_cors_is_off_by_default(http: httpx.Client, server: RunningServer) -> None:
    origin = f"http://{server.host}:{server.port}"
    response = http.get("/v1/models", headers={"origin": origin})
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


def test_cors_for_a_configured_origin(keyed: RunningServer) -> None:
    origin = {"origin": "https://app.example"}
    preflight = httpx.options(
        f"{keyed.url}/v1/chat/completions",
        headers={**origin, "access-control-request-method": "POST"},
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    refused = httpx.get(f"{keyed.url}/v1/models", headers=origin, timeout=60)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"


# -- request ids -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "kept"), [("abc-123", True), ("x" * 129, False), ("a b", False), ("é", False)]
)
def test_request_ids(http: httpx.Client, sent: str, kept: bool) -> None:
    found = http.get("/health", headers={"x-request-id": sent.encode()}).headers["x-request-id"]
    assert (found == sent) is kept
    assert found
