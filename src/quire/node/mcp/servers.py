"""The node's MCP servers: which tenant may use which; the first call starts one, disuse ends it.

Owns at most one process of each server, shared by all programs that may use it. Belongs to one
loop. The calls themselves belong to the service.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from quire.core.errors import ProgramError, ProgramTerminated, QuotaExceeded, UnknownHandle
from quire.core.ids import TenantId
from quire.core.interfaces import Clock
from quire.core.mcp_config import McpServerConfig
from quire.node.mcp.process import McpProcess

MAX_CALLS = 32
"""Calls in flight of one tenant at one server."""
MAX_STARTS = 5
START_WINDOW_S = 60.0

NewProcess = Callable[[McpServerConfig], McpProcess]


class McpServers:
    """All MCP servers by name. ``new_process`` is replaced by tests."""

    def __init__(
        self,
        configs: Sequence[McpServerConfig],
        clock: Clock,
        new_process: NewProcess = McpProcess,
    ) -> None:
        self._servers = {config.name: _Server(config, clock, new_process) for config in configs}

    async def ask(
        self, server: str, tenant: TenantId, method: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        """See ``AskServer``.

        Raises:
            UnknownHandle: no such server for this tenant.
            QuotaExceeded: the tenant has too many calls in flight at the server.
            ProgramError, InvalidArgument: see ``McpProcess.ask``.
        """
        found = self._servers.get(server)
        if found is None or not found.serves(tenant):
            names = [name for name, one in sorted(self._servers.items()) if one.serves(tenant)]
            raise UnknownHandle(
                f"this node runs no MCP server {server!r} for this tenant, which has "
                f"{', '.join(names) or 'none'}: its operator names them (--mcp-servers)"
            )
        return await found.ask(tenant, method, params)

    def pids(self) -> dict[str, int]:
        """The running processes, by server."""
        return {
            name: server.process.pid
            for name, server in self._servers.items()
            if server.process is not None
        }

    async def close(self) -> None:
        """End all processes; later calls are refused. Idempotent."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))


class _Server:
    """One server, with or without a running process."""

    def __init__(self, config: McpServerConfig, clock: Clock, new_process: NewProcess) -> None:
        self._config = config
        self._clock = clock
        self._new_process = new_process
        self._calls: Counter[TenantId] = Counter()
        self._starts: deque[float] = deque()
        self._starting: asyncio.Task[McpProcess] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False
        self.process: McpProcess | None = None

    def serves(self, tenant: TenantId) -> bool:
        return self._config.tenants is None or tenant in self._config.tenants

    async def ask(self, tenant: TenantId, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if self._calls[tenant] >= MAX_CALLS:
            raise QuotaExceeded(
                f"{MAX_CALLS} calls of this tenant are under way at MCP server "
                f"{self._config.name}, as many as are allowed: await some of them first"
            )
        self._calls[tenant] += 1
        try:
            process = await self._running()
            if method == "initialize":
                return process.initialized
            return await process.ask(method, params)
        finally:
            self._calls[tenant] -= 1
            if not self._calls[tenant]:
                del self._calls[tenant]
            self._watch_idle()

    async def close(self) -> None:
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        if self._idle is not None:
            self._idle.cancel()
        self._end()
        if self._ending:
            await asyncio.wait(set(self._ending))

    async def _running(self) -> McpProcess:
        if self._closed:
            raise ProgramTerminated("the node is stopping and asks no MCP server any more")
        if self.process is not None:
            if not self.process.ended.is_set():
                return self.process
            self._end()
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(), name=f"start {self._config.name}")
            self._starting.add_done_callback(_seen)
        return await asyncio.shield(self._starting)

    async def _start(self) -> McpProcess:
        """Start a process; all calls that arrive meanwhile wait for it."""
        try:
            self._check_starts()
            process = self._new_process(self._config)
            try:
                await process.start()
            except BaseException:
                await process.close()
                raise
            self.process = process
            return process
        finally:
            self._starting = None
            self._watch_idle()  # whoever has waited for it may have given up

    def _check_starts(self) -> None:
        now_s = self._clock.now_s()
        while self._starts and now_s - self._starts[0] > START_WINDOW_S:
            self._starts.popleft()
        if len(self._starts) >= MAX_STARTS:
            raise ProgramError(
                f"MCP server {self._config.name} was started {len(self._starts)} times within "
                f"{START_WINDOW_S:g} s: it is left alone for a while; the node's log has what it "
                "said"
            )
        self._starts.append(now_s)

    def _watch_idle(self) -> None:
        """Start the idle time again; called at the end of every call."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self._calls and self.process is not None and not self._closed:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._config.idle_s, self._unused)

    def _unused(self) -> None:
        self._idle = None
        if not self._calls:
            self._starts.clear()  # it did not crash
            self._end()

    def _end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            task = asyncio.create_task(process.close(), name=f"end {self._config.name}")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


def _seen(start: asyncio.Task[McpProcess]) -> None:
    """Retrieve the error of ``start``: every call that waited for it may have been cancelled."""
    if not start.cancelled():
        start.exception()
