"""Connections that say nothing need no key: they keep nobody out who has something to ask."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import httpx
import pytest
from scripted_server import GatedEngine, RunningServer, running_server

from quire.core.config import ServerConfig
from quire.server.listening import open_files
from quire.server.listening.connections import MIN_SILENT, ConnectionTable

GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "say hi"}]}


@dataclass(eq=False)
class Client:
    """A connection of the table."""

    table: ConnectionTable
    is_open: bool = True

    def give_up(self) -> None:
        self.is_open = False


def opened(table: ConnectionTable, count: int) -> list[Client]:
    clients = [Client(table) for _ in range(count)]
    for client in clients:
        table.opened(client, 0.0)
    return clients


def asking(table: ConnectionTable, count: int) -> list[Client]:
    clients = []
    for _ in range(count):
        clients += opened(table, 1)
        table.asked(clients[-1])
    return clients


def test_silent_ones_have_half_of_the_room_and_the_oldest_goes() -> None:
    table = ConnectionTable(100)
    silent = opened(table, 70)
    assert [client.is_open for client in silent] == [False] * 20 + [True] * 50
    assert len(table) == 50


def test_silent_ones_make_room_for_those_that_ask() -> None:
    table = ConnectionTable(100)
    asking(table, 91)
    silent = opened(table, 40)  # 91 ask: what is left is less than what silent ones always have
    assert sum(client.is_open for client in silent) == MIN_SILENT
    assert len(table) == 91 + MIN_SILENT


def test_idle_ones_go_when_all_is_taken_and_busy_ones_never() -> None:
    table = ConnectionTable(100)
    idle, busy = asking(table, 40), asking(table, 40)
    for client in idle:
        table.answered(client)
    silent = opened(table, 30)
    assert all(client.is_open for client in busy + silent)
    assert [client.is_open for client in idle] == [False] * 10 + [True] * 30
    table.answered(idle[0])  # its answer's end comes behind its own
    assert len(table) == 100
    for client in idle + busy + silent:
        table.closed(client)
    assert len(table) == 0


def test_the_log_says_so_seldom(caplog: pytest.LogCaptureFixture) -> None:
    table = ConnectionTable(64)
    for now_s in (0.0, 1.0, 11.0):
        for _ in range(50):
            table.opened(Client(table), now_s)
    assert len(caplog.records) == 2
    assert "1 connections" in caplog.records[0].getMessage()
    assert "68 connections" in caplog.records[1].getMessage()


def test_the_limit_of_open_files_leaves_some_to_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, expected in ((1024, 768), (256, 192), (1 << 20, 16384)):
        monkeypatch.setattr(
            open_files.resource, "getrlimit", lambda kind, limit=limit: (limit, limit)
        )
        assert open_files.max_connections() == expected


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(server: RunningServer, sockets: ExitStack) -> socket.socket:
    return sockets.enter_context(socket.create_connection((server.host, server.port), timeout=60))


def answer_to(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    return connection.recv(65536)


def test_a_thousand_silent_connections_keep_nobody_out(
    sockets: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    config = ServerConfig(drain_timeout_s=1.0, sandbox_upload=False, max_connections=128)
    with running_server(config) as server:
        known = connect(server, sockets)
        assert b"200 OK" in answer_to(known, GET)
        for _ in range(300):
            connect(server, sockets)
        for _ in range(3):
            assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200
        assert httpx.post(server.url + CHAT, json=HI, timeout=60).status_code == 200
        assert b"200 OK" in answer_to(known, GET), "one that has asked before is kept"
    assert "closed that waited without a request" in caplog.text


def test_a_head_that_does_not_come_is_not_waited_for(sockets: ExitStack) -> None:
    config = ServerConfig(drain_timeout_s=1.0, sandbox_upload=False, head_timeout_s=0.01)
    with running_server(config) as server:
        assert connect(server, sockets).recv(1) == b""
        begun = b""
        while not begun:  # its first bytes may come when it has been given up: it is closed, then
            with suppress(ConnectionError):
                begun = answer_to(connect(server, sockets), GET[:-2])
        assert begun.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in begun


def test_an_answer_may_take_longer_than_a_head(sockets: ExitStack) -> None:
    engine = GatedEngine()
    config = ServerConfig(drain_timeout_s=1.0, sandbox_upload=False, head_timeout_s=2.0)
    with running_server(config, load=lambda: engine) as server:
        engine.gate.clear()
        body = json.dumps(HI).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        asking = connect(server, sockets)
        asking.sendall(head.encode() + body + GET[:-2])
        assert engine.arrived.wait(60)
        time.sleep(2.5)
        engine.gate.set()
        assert asking.recv(65536).startswith(b"HTTP/1.1 200 OK")
