"""A router behind its listener: it says when it is ready, and ends when it is asked to."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
from router_world import NEVER_S

from quire.cluster.config import RouterConfig
from quire.cluster.nodes.watch import WatchTimes
from quire.cluster.routing.strategy import StrategySource
from quire.cluster.service import RouterService
from quire.core.config import ServerConfig
from quire.core.errors import InvalidArgument


def service(strategy: StrategySource) -> RouterService:
    config = RouterConfig(
        nodes=(), strategy=strategy, times=WatchTimes(interval_s=NEVER_S, timeout_s=NEVER_S)
    )
    return RouterService(config, ServerConfig(), socket.create_server(("127.0.0.1", 0)))


async def test_it_says_that_it_is_ready_and_ends_when_it_is_asked_to() -> None:
    made, ready = service(StrategySource("least_used")), asyncio.Event()
    running = asyncio.create_task(made.run(ready.set))
    await ready.wait()
    url = made.url
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        answer = await http.get(f"{url}/health")
    assert answer.json()["status"] == "no node"
    made.request_stop.asked.set()
    await running
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)


async def test_one_whose_strategy_is_refused_never_is() -> None:
    def on_ready() -> None:
        raise AssertionError("it is not ready")

    made = service(StrategySource("route", "raise SystemExit"))
    with made._sock, pytest.raises(InvalidArgument, match="SystemExit"):
        await made.run(on_ready)
