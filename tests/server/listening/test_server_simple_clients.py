"""HTTP/1.0, and clients that close their half of the connection: all get their answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from request_log import RequestLines
from scripted_server import GatedEngine, RunningServer, running_server

from quire.core.config import ServerConfig

CHAT = "/v1/chat/completions"
SAY = {"messages": [{"role": "user", "content": "say Grüße!"}], "temperature": 0}


@pytest.fixture(scope="module")
def engine() -> GatedEngine:
    return GatedEngine()


@pytest.fixture(scope="module")
def gated(engine: GatedEngine) -> Iterator[RunningServer]:
    with running_server(ServerConfig(drain_timeout_s=1.0), load=lambda: engine) as running:
        yield running


@pytest.fixture
def closed_gate(engine: GatedEngine) -> Iterator[GatedEngine]:
    engine.arrived.clear()
    engine.gate.clear()
    yield engine
    engine.gate.set()


def request(version: str, body: dict[str, Any], *headers: str) -> bytes:
    raw = json.dumps(body).encode()
    lines = [
        f"POST {CHAT} HTTP/{version}",
        "content-type: application/json",
        f"content-length: {len(raw)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


def connected(server: RunningServer) -> socket.socket:
    sock = socket.create_connection((server.host, server.port))
    sock.settimeout(60)
    return sock


def rest(sock: socket.socket) -> bytes:
    """All that comes until the server closes."""
    return b"".join(iter(lambda: sock.recv(1 << 16), b""))


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def head_and_body(answer: bytes) -> tuple[bytes, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.lower(), body


@pytest.mark.parametrize("is_half_closed", [False, True])
@pytest.mark.parametrize("headers", [(), ("host: localhost",), ("connection: keep-alive",)])
def test_http_1_0_needs_no_host_and_gets_a_whole_answer(
    server: RunningServer, headers: tuple[str, ...], is_half_closed: bool
) -> None:
    with connected(server) as sock:
        sock.sendall(request("1.0", SAY, *headers))
        if is_half_closed:
            sock.shutdown(socket.SHUT_WR)
        head, body = head_and_body(rest(sock))
    assert head.startswith(b"http/1.1 200")
    assert b"connection: close" in head
    assert json.loads(body)["choices"][0]["message"]["content"] == "Grüße!"


def test_a_stream_to_http_1_0_has_no_chunks(server: RunningServer) -> None:
    with connected(server) as sock:
        sock.sendall(request("1.0", {**SAY, "stream": True}))
        head, body = head_and_body(rest(sock))
    assert b"chunked" not in head
    lines = [line for line in body.split(b"\n") if line]
    assert all(line.startswith(b"data: ") for line in lines)
    assert lines[-1] == b"data: [DONE]"


def test_http_1_0_has_heads_and_errors_too(server: RunningServer) -> None:
    with connected(server) as sock:
        sock.sendall(b"HEAD /health HTTP/1.0\r\n\r\n")
        assert head_and_body(rest(sock))[1] == b""
    with connected(server) as sock:
        sock.sendall(b"GET /v1/nowhere HTTP/1.0\r\n\r\n")
        head, body = head_and_body(rest(sock))
    assert head.startswith(b"http/1.1 404")
    assert json.loads(body)["error"]["code"] == "not_found"


def test_http_1_1_without_a_host_is_refused(server: RunningServer) -> None:
    with connected(server) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n")
        assert rest(sock).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_has_finished_sending_gets_its_answer(
    gated: RunningServer, closed_gate: GatedEngine, stream: bool
) -> None:
    """Its FIN comes while the engine works, long before there is anything to send."""
    with connected(gated) as sock:
        sock.sendall(request("1.1", {**SAY, "stream": stream}, "host: localhost"))
        assert closed_gate.arrived.wait(60)
        sock.shutdown(socket.SHUT_WR)
        # the server has seen the FIN once it has sent the line that looks for the client
        assert sock.recv(len(CONTINUE), socket.MSG_WAITALL) == CONTINUE
        closed_gate.gate.set()
        answer = rest(sock)
    while answer.startswith(CONTINUE):  # on a loaded machine it looks more than once
        answer = answer.removeprefix(CONTINUE)
    head, body = head_and_body(answer)
    assert head.startswith(b"http/1.1 200")
    assert "Grüße".encode() in body or stream
    assert not stream or body.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nowhere"])
def test_an_answer_that_is_ready_at_once_reaches_a_half_closed_client(
    server: RunningServer, path: str
) -> None:
    """The FIN comes in the turn of the loop after the request, when the answer is complete and
    still gathered with other writes."""
    for _ in range(10):
        with connected(server) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            sock.shutdown(socket.SHUT_WR)
            head, body = head_and_body(rest(sock))
        assert head.startswith(b"http/1.1 404" if path == "/nowhere" else b"http/1.1 200")
        assert json.loads(body)


def test_requests_in_a_row_are_all_answered(gated: RunningServer, closed_gate: GatedEngine) -> None:
    """A client may send several and then no more."""
    with connected(gated) as sock:
        sock.sendall(request("1.1", SAY, "host: localhost") * 2)
        assert closed_gate.arrived.wait(60)
        sock.shutdown(socket.SHUT_WR)
        closed_gate.gate.set()
        assert rest(sock).count(b"HTTP/1.1 200") == 2


def test_a_client_that_has_left_is_told_from_one_that_has_finished_sending(
    gated: RunningServer, closed_gate: GatedEngine, request_lines: RequestLines
) -> None:
    sock = connected(gated)
    sock.sendall(request("1.1", SAY, "host: localhost"))
    assert closed_gate.arrived.wait(60)
    sock.close()
    line = request_lines.next()
    assert (line["outcome"], line["reason"]) == ("aborted", "the client has disconnected")


def test_a_client_that_sends_no_more_in_the_middle_of_a_request_has_left(
    server: RunningServer,
) -> None:
    with connected(server) as sock:
        sock.sendall(request("1.1", SAY, "host: localhost")[:-5])
        sock.shutdown(socket.SHUT_WR)
        assert rest(sock) == b""
