"""A router with its listener over stand-in nodes, all on the test's loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import msgspec
from stand_in_node import CLUSTER_KEY, StandInNode

from quire.cluster.app import Router, make_router
from quire.cluster.config import RouterConfig
from quire.cluster.nodes.addresses import read_addresses
from quire.cluster.nodes.liveness import Hysteresis
from quire.cluster.nodes.watch import WatchTimes
from quire.cluster.passing.outliving import OutlivingAnswer
from quire.cluster.routing.running import Try
from quire.cluster.routing.strategy import StrategySource
from quire.core.config import ServerConfig
from quire.server.listening.listener import Listener, make_listener

ADMIN = "the-admin-key"
ADMIN_HEADERS = {"authorization": f"Bearer {ADMIN}"}
NEVER_S = 3600.0
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class World:
    """``http`` asks the router. The nodes' health is looked at only by ``probe``."""

    router: Router
    nodes: Sequence[StandInNode]
    http: httpx.AsyncClient
    url: str

    async def probe(self, times: int = 1) -> None:
        for _ in range(times):
            await asyncio.gather(*(watch.probe() for watch in self.router.fleet.watches))

    async def complete(self, prompt: str = "Hi", **fields: Any) -> httpx.Response:
        headers = fields.pop("headers", {})
        body = {"prompt": prompt, "max_tokens": 4, **fields}
        return await self.http.post("/v1/completions", json=body, headers=headers)

    async def put(self, **change: Any) -> httpx.Response:
        return await self.http.put("/router/strategy", json=change, headers=ADMIN_HEADERS)


def text_of(answer: httpx.Response) -> str:
    """The text of a completion, whole or streamed."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return str(answer.json()["choices"][0]["text"])
    return "".join(event["choices"][0]["text"] for event in events(answer.text))


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream but its last, [DONE]."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [msgspec.json.decode(one) for one in data[:-1]]


async def not_apart(source: StrategySource) -> None:
    """The router's own trial refuses a strategy as well, and starts no process for it."""


@asynccontextmanager
async def world(
    num_nodes: int = 2,
    strategy: str | StrategySource = "data_parallel",
    *,
    server: ServerConfig | None = None,
    nodes: Sequence[StandInNode] | None = None,
    try_apart: Try | None = not_apart,
    **options: Any,
) -> AsyncIterator[World]:
    """``options`` are those of ``RouterConfig``."""
    async with contextlib.AsyncExitStack() as stack:
        if nodes is None:
            fleet: dict[str, StandInNode] = {}
            nodes = [StandInNode(f"node-{number}", fleet) for number in range(num_nodes)]
            for node in nodes:
                await stack.enter_async_context(node.peer)
        config = RouterConfig(
            nodes=read_addresses([f"{node.name}={node.peer.url}" for node in nodes]),
            strategy=StrategySource(strategy) if isinstance(strategy, str) else strategy,
            admin_key=ADMIN,
            cluster_key=CLUSTER_KEY,
            times=WatchTimes(interval_s=NEVER_S, timeout_s=NEVER_S),
            hysteresis=Hysteresis(num_failures=2, num_successes=2),
        )
        config = replace(config, **options)
        server = server or ServerConfig()
        router = await make_router(config, server, try_apart)
        await stack.enter_async_context(router.running())
        sock = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        listener = make_listener(router, server, has_lifespan=False, close_timeout_s=1)
        await listening(listener, sock)
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, verify=False)
        )
        try:
            yield World(router, nodes, client, url)
        finally:
            await client.aclose()
            await until(lambda: not listener.server_state.connections)
            await listener.shutdown(sockets=[sock])


def num_told(answer: OutlivingAnswer) -> int:
    """Of the tokens of its choices that run."""
    return sum(map(len, answer.generated or ()))


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until ``condition`` holds: turn by turn at first, then with pauses, because
    threads and processes may have to do something for it."""
    num_turns = 0
    async with asyncio.timeout(100):
        while not condition():
            num_turns += 1
            await asyncio.sleep(0 if num_turns < 1000 else 0.001)


async def listening(listener: Listener, sock: socket.socket) -> None:
    """``serve`` without its clock, which looks ten times a second whether to end."""
    listener.config.load()
    listener.lifespan = listener.config.lifespan_class(listener.config)
    await listener.startup(sockets=[sock])
