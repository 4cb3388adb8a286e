"""A keeper on a thread of its own, for whoever calls from outside: the body of an actor.

Owns the thread and its loop. Messages are JSON; must not know who sends them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

import httpx
import msgspec

from quire.cluster.deployment.folder import process_folder
from quire.cluster.deployment.keeper import Keeper
from quire.cluster.deployment.process import ADMIN_KEY_FILE, ProcessSpec, decoded
from quire.core.system_clock import SystemClock

logger = logging.getLogger(__name__)

_PROBE_TIMEOUT_S = 2.0
_TELL_TIMEOUT_S = 60.0
"""A router moves answers away from nodes that leave before it answers."""

_SAID_CHARS = 300


class HostedKeeper:
    """``machine``: the name of the machine it runs on, which is its address for others."""

    def __init__(self, spec_json: bytes, assignment: str, machine: str) -> None:
        """Begins at once. Raises ``ConfigError`` for a spec of another release."""
        spec = decoded(spec_json, "the order of 'quire up'")
        self._failure = ""
        self._loop = asyncio.new_event_loop()
        self._http = httpx.AsyncClient(timeout=_PROBE_TIMEOUT_S, trust_env=False)
        self._keeper = Keeper(
            spec,
            process_folder(Path(spec.state_dir), spec.name),
            assignment,
            host="127.0.0.1" if spec.listens == "loopback" else machine,
            machine=machine,
            environment=dict(os.environ),
            probe=self._is_ready,
            tell=self._tell,
            clock=SystemClock(),
        )
        self._thread = threading.Thread(target=self._run, name=f"keep {spec.name}", daemon=True)
        self._thread.start()

    def state(self) -> bytes:
        """A ``ProcessState``."""
        state = msgspec.structs.replace(self._keeper.state, keeper_pid=os.getpid())
        if self._failure:
            state = msgspec.structs.replace(state, phase="failed", detail=self._failure)
        return msgspec.json.encode(state)

    def stop(self) -> None:
        """Begin to end the process; ``state`` tells when that is done."""
        self._loop.call_soon_threadsafe(self._keeper.request_stop)

    def remove_files(self) -> None:
        """Remove the folder of a process that is stopped."""
        self._keeper.remove_files()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._keep())
        except Exception as exc:  # a bug, or a broken disk: said, as nobody waits for this thread
            logger.exception("a keeper failed")
            self._failure = f"its keeper failed: {exc!r}"

    async def _keep(self) -> None:
        async with self._http:
            await self._keeper.run()

    async def _is_ready(self, url: str) -> bool:
        try:
            answer = await self._http.get(f"{url}/ready")
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK

    async def _tell(self, url: str, spec: ProcessSpec) -> str:
        key = spec.keys.get(ADMIN_KEY_FILE, "")
        try:
            answer = await self._http.put(
                f"{url}/router/nodes",
                json={"nodes": spec.addresses},
                headers={"authorization": f"Bearer {key}"},
                timeout=_TELL_TIMEOUT_S,
            )
        except httpx.HTTPError as exc:
            return f"{type(exc).__name__}: {exc}"
        if answer.status_code == httpx.codes.OK:
            return ""
        return f"status {answer.status_code}: {answer.text[:_SAID_CHARS]}"
