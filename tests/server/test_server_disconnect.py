"""Clients that leave, stall or send half a request: nothing is lost for anyone else."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from request_log import RequestLines
from scripted_server import GatedEngine, RunningServer, running_server

from quire.core.config import ServerConfig
from quire.server.listening.http_protocol import MAX_DROPPED_BYTES

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def engine() -> GatedEngine:
    return GatedEngine()


@pytest.fixture(scope="module")
def gated(engine: GatedEngine) -> Iterator[RunningServer]:
    config = ServerConfig(drain_timeout_s=1.0)
    with running_server(config, load=lambda: engine, send_buffer_bytes=4096) as running:
        yield running


@pytest.fixture(scope="module")
def impatient() -> Iterator[RunningServer]:
    config = ServerConfig(drain_timeout_s=1.0, write_timeout_s=2.0, body_timeout_s=2.0)
    with running_server(config, send_buffer_bytes=4096) as running:
        yield running


@pytest.fixture
def closed_gate(engine: GatedEngine) -> Iterator[GatedEngine]:
    engine.arrived.clear()
    engine.gate.clear()
    yield engine
    engine.gate.set()


def connected(server: RunningServer, receive_buffer_bytes: int | None = None) -> socket.socket:
    sock = socket.socket()
    if receive_buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    sock.connect((server.host, server.port))
    sock.settimeout(60)
    return sock


def request(body: dict[str, Any], path: str = CHAT) -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return head.encode() + f"content-length: {len(raw)}\r\n\r\n".encode() + raw


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def reset(sock: socket.socket) -> None:
    """Close so that the peer sees a reset instead of an end."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def check_unharmed(server: RunningServer) -> None:
    assert server.num_held_blocks() == 0
    answer = httpx.post(server.url + CHAT, json=chat("say still here"), timeout=60).json()
    assert answer["choices"][0]["message"]["content"] == "still here"


@pytest.mark.parametrize("leave", [socket.socket.close, reset])
@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_first_token(
    gated: RunningServer, closed_gate: GatedEngine, request_lines: RequestLines, stream: bool,
    leave: Any,
) -> None:  # fmt: skip
    sock = connected(gated)
    sock.sendall(request(chat("say " + "x" * 100, stream=stream, n=2)))
    assert closed_gate.arrived.wait(60)
    leave(sock)
    line = request_lines.next()
    assert (line["outcome"], line["reason"]) == ("aborted", "the client has disconnected")
    assert line["completion_tokens"] == (0 if stream else None)  # a whole answer tells at its end
    closed_gate.gate.set()
    check_unharmed(gated)


@pytest.mark.parametrize("leave", [socket.socket.close, reset])
def test_leaving_in_the_middle_of_a_stream(
    gated: RunningServer, request_lines: RequestLines, leave: Any
) -> None:
    """The connection takes a few kilobytes, so the call is still under way when its client goes."""
    sock = connected(gated, receive_buffer_bytes=4096)
    sock.sendall(request(chat("say go", stream=True, ignore_eos=True, max_tokens=900)))
    assert b"200 OK" in sock.recv(1024)
    leave(sock)
    line = request_lines.next()
    assert line["outcome"] == "aborted"
    check_unharmed(gated)


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_an_answer_whose_client_has_left_are_counted(
    gated: RunningServer, closed_gate: GatedEngine, request_lines: RequestLines, stream: bool
) -> None:
    def num_generated() -> float:
        name = 'vllm:generation_tokens_total{engine="scripted#0",model_name="scripted"} '
        lines = httpx.get(gated.url + "/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(name)).removeprefix(name))

    before = num_generated()
    closed_gate.close_after(2)
    closed_gate.gate.set()
    sock = connected(gated)
    sock.sendall(request(chat("say " + "x" * 300, stream=stream)))
    assert closed_gate.arrived.wait(60)  # the first of its messages have been answered
    sock.close()
    assert request_lines.next()["outcome"] == "aborted"
    assert num_generated() > before
    closed_gate.gate.set()
    check_unharmed(gated)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "say " + "x" * 600}),
        ("/v1/messages", {**chat("say " + "x" * 600), "max_tokens": 400}),
    ],
)
def test_leaving_in_the_middle_of_other_dialects(
    gated: RunningServer, request_lines: RequestLines, path: str, body: dict[str, Any]
) -> None:
    """The connection takes a few kilobytes, so the call is still under way when its client goes."""
    sock = connected(gated, receive_buffer_bytes=4096)
    sock.sendall(request({**body, "stream": True}, path))
    assert b"200 OK" in sock.recv(1024)
    reset(sock)
    assert request_lines.next()["outcome"] == "aborted"
    check_unharmed(gated)


def test_leaving_while_others_run_ends_one_call(
    gated: RunningServer, closed_gate: GatedEngine, request_lines: RequestLines
) -> None:
    leaver, stayer = connected(gated), connected(gated)
    with closing(stayer):
        leaver.sendall(request(chat("say gone", stream=True)))
        stayer.sendall(request(chat("say stayed")))
        assert closed_gate.arrived.wait(60)
        leaver.close()
        assert request_lines.next()["outcome"] == "aborted"
        closed_gate.gate.set()
        received = b""
        while b"stayed" not in received:
            part = stayer.recv(65536)
            assert part, received
            received += part
    assert request_lines.next()["outcome"] == "finished"
    check_unharmed(gated)


@pytest.mark.parametrize("part", [4, 40, -30, -1])
def test_leaving_within_the_request(gated: RunningServer, part: int) -> None:
    sock = connected(gated)
    sock.sendall(request(chat("say half"))[:part])
    sock.close()
    check_unharmed(gated)


def test_a_body_that_does_not_come_is_408(impatient: RunningServer) -> None:
    with closing(connected(impatient)) as sock:
        sock.sendall(request(chat("say half"))[:-10])
        answer = b""
        while not answer.endswith(b"}}"):
            part = sock.recv(65536)
            assert part, answer
            answer += part
    assert b"408" in answer.split(b"\r\n")[0]
    assert b'"code":"request_timeout"' in answer
    check_unharmed(impatient)


@pytest.mark.parametrize(
    "raw", [b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n"]
)
def test_what_is_no_http_is_400(gated: RunningServer, raw: bytes) -> None:
    with closing(connected(gated)) as sock:
        try:
            sock.sendall(raw + b"\r\n\r\n")
            answer = sock.recv(65536)
        except ConnectionError:
            answer = b""
    assert not answer or b"400" in answer.split(b"\r\n")[0]
    check_unharmed(gated)


@pytest.mark.parametrize("line", [b"x: y\r\n", b"x" * 100])
def test_trailers_without_end_are_cut_off(gated: RunningServer, line: bytes) -> None:
    """Behind a chunked body, where a client may send headers again."""
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with closing(connected(gated)) as sock:
        sock.sendall(head + b"2\r\n{}\r\n0\r\n")
        with pytest.raises(ConnectionError):
            sock.sendall(line * (60_000_000 // len(line)))  # more than the sockets' buffers hold
    check_unharmed(gated)


LONG = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: localhost\r\n"


def test_who_sends_a_long_body_to_its_end_still_gets_the_answer(gated: RunningServer) -> None:
    size = 32 << 20  # more than the sockets' buffers hold: this server has read all of it
    with closing(connected(gated)) as sock:
        for _ in range(2):  # the connection lives on
            sock.sendall(LONG + b"content-length: %d\r\n\r\n" % size + bytes(size))
            answer = sock.recv(65536)
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b"request_too_large" in answer or b"request_too_large" in sock.recv(65536)
    check_unharmed(gated)


def test_a_body_that_goes_on_long_after_its_answer_is_cut_off(gated: RunningServer) -> None:
    size = 2 * MAX_DROPPED_BYTES
    with closing(connected(gated)) as sock:
        sock.sendall(LONG + b"content-length: %d\r\n\r\n" % size)
        with pytest.raises(ConnectionError):
            sock.sendall(bytes(size))
    check_unharmed(gated)


def test_a_body_that_was_only_announced_is_not_waited_for(gated: RunningServer) -> None:
    """A client that was told 413 instead of 100 may send its next request at once, or the body."""
    with closing(connected(gated)) as sock:
        sock.sendall(LONG + b"expect: 100-continue\r\ncontent-length: 5000000\r\n\r\n")
        answer = b""
        while part := sock.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 413 ")
    check_unharmed(gated)


def test_a_body_in_chunks_of_one_byte_is_read(gated: RunningServer) -> None:
    raw = json.dumps(chat("say x", max_tokens=1)).encode() + b" " * 3000
    head = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: localhost\r\n"
    head += b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    with closing(connected(gated)) as sock:
        sock.sendall(head + b"".join(b"1\r\n%c\r\n" % byte for byte in raw) + b"0\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_never_reads_loses_its_call(
    impatient: RunningServer, request_lines: RequestLines, stream: bool
) -> None:
    body = chat("say go", stream=stream, ignore_eos=True, max_tokens=900, n=2)
    with closing(connected(impatient, receive_buffer_bytes=4096)) as sock:
        sock.sendall(request({**body, "logprobs": True, "top_logprobs": 20}))
        line = request_lines.next()
        if stream:
            assert line["outcome"] == "aborted"
            assert line["reason"] == "the client has read nothing for 2 s"
        else:
            assert line["outcome"] == "finished"
    check_unharmed(impatient)


def test_a_slow_reader_holds_back_and_gets_everything(
    gated: RunningServer, request_lines: RequestLines
) -> None:
    body = chat("say go", stream=True, ignore_eos=True, max_tokens=300)
    with closing(connected(gated, receive_buffer_bytes=4096)) as sock:
        sock.sendall(request({**body, "logprobs": True, "top_logprobs": 20}))
        received = b""
        while b"[DONE]" not in received:
            part = sock.recv(512)
            assert part, received[-200:]
            received += part
    assert received.count(b'"logprob"') >= 300
    assert request_lines.next()["outcome"] == "finished"
    check_unharmed(gated)
