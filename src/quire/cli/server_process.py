"""Runs ``quire serve`` in a child process, for commands that need a server for a while.

Owns the child: finds its address, waits until it is ready, ends it in every case, and reports its
last output when it fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from quire.cli.client import NodeClient
from quire.core.errors import EngineLost

_ADDRESS = re.compile(r"https?://\S+")
_KEPT_LINES = 12
_READY_INTERVAL_S = 0.05
_GRACE_S = 15.0


@dataclass(slots=True)
class ServerProcess:
    """A running child. ``said``: the last lines of its stderr."""

    process: asyncio.subprocess.Process
    url: str = ""
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))

    def died(self) -> EngineLost:
        """Return the error for a child that has ended by itself."""
        said = "\n  ".join(self.said) or "(it said nothing)"
        return EngineLost(
            f"the server process ended with status {self.process.returncode}; it last said:\n  "
            f"{said}\nrun 'quire doctor' to see what this machine lacks"
        )


@contextlib.asynccontextmanager
async def server_process(
    arguments: Sequence[str] = (), *, timeout_s: float = 120.0
) -> AsyncIterator[ServerProcess]:
    """Run a server on a free loopback port; yield it when it is ready for work, and end it with the
    block.

    Ignores the environment: only ``arguments`` decide what it serves.

    Raises:
        EngineLost: it ended, or was not ready within ``timeout_s``.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    command = [sys.executable, "-m", "quire.cli", "serve", "--port", "0", "--no-log-requests"]
    process = await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    server = ServerProcess(process)
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(_read(server, listening))
    try:
        async with _limit(timeout_s):
            server.url = await listening
            await _wait_ready(server)
        yield server
    finally:
        await _end(process)
        await reading
        listening.cancel()


@contextlib.asynccontextmanager
async def _limit(timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as exc:
        raise EngineLost(
            f"the server process was not ready after {timeout_s:.0f} s: run 'quire serve' to "
            "see what takes so long"
        ) from exc


async def _read(server: ServerProcess, listening: asyncio.Future[str]) -> None:
    """Keep the child's output; the first address in it is the child's own."""
    assert server.process.stderr is not None
    async for raw in server.process.stderr:
        line = raw.decode("utf-8", "replace").rstrip()
        server.said.append(line)
        match = _ADDRESS.search(line)
        if match and not listening.done():
            listening.set_result(match.group())
    await server.process.wait()
    if not listening.done():
        listening.set_exception(server.died())


async def _wait_ready(server: ServerProcess) -> None:
    """Poll the child over HTTP; it is another process, so there is nothing to await."""
    with NodeClient(server.url) as node:
        while not await asyncio.to_thread(node.is_ready):
            if server.process.returncode is not None:
                raise server.died()
            await asyncio.sleep(_READY_INTERVAL_S)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _GRACE_S)
    except TimeoutError:
        process.kill()
        await process.wait()
