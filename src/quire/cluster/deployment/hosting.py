"""Runs a keeper on a thread of its own, for calls from other threads: the body of an actor.

Owns the thread and its loop. Messages are JSON; must not know their sender.
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
from quire.cluster.deployment.keeper import Keeper, Readiness
from quire.cluster.deployment.ports import is_taken
from quire.cluster.deployment.process import ADMIN_KEY_FILE, ProcessSpec, decoded
from quire.core.system_clock import SystemClock

logger = logging.getLogger(__name__)

_PROBE_TIMEOUT_S = 2.0
_TELL_TIMEOUT_S = 60.0
"""Before a router answers, it moves answers away from the nodes that leave."""

_SAID_CHARS = 300
_DETAIL_CHARS = 1000


class HostedKeeper:
    """A keeper on its own thread. ``machine``: the name of its machine, which is its address for
    others."""

    def __init__(self, spec_json: bytes, assignment: str, machine: str) -> None:
        """Start to keep the process. Raises ``ConfigError`` if another release wrote the spec."""
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
            probe=self._readiness,
            tell=self._tell,
            clock=SystemClock(),
            is_taken=is_taken,
        )
        self._thread = threading.Thread(target=self._run, name=f"keep {spec.name}", daemon=True)
        self._thread.start()

    def state(self) -> bytes:
        """Return the ``ProcessState`` as JSON."""
        state = msgspec.structs.replace(self._keeper.state, keeper_pid=os.getpid())
        if self._failure:
            state = msgspec.structs.replace(state, phase="failed", detail=self._failure)
        return msgspec.json.encode(state)

    def stop(self) -> None:
        """Begin to end the process; ``state`` shows when that is done."""
        self._loop.call_soon_threadsafe(self._keeper.request_stop)

    def remove_files(self) -> None:
        """Remove the folder of the process, if it is stopped."""
        self._keeper.remove_files()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._keep())
        except Exception as exc:  # a bug or a broken disk: nothing joins this thread, so report it
            logger.exception("a keeper failed")
            self._failure = f"its keeper failed: {exc!r}"

    async def _keep(self) -> None:
        async with self._http:
            await self._keeper.run()

    async def _readiness(self, url: str) -> Readiness:
        try:
            answer = await self._http.get(f"{url}/ready")
        except httpx.HTTPError:
            return Readiness(is_ready=False)
        return readiness_of(answer)

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


def readiness_of(answer: httpx.Response) -> Readiness:
    """Return what an answer to ``/ready`` says. A process that takes work need not say why."""
    if answer.status_code == httpx.codes.OK:
        return Readiness(is_ready=True)
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = f"/ready answers {answer.status_code}"
    return Readiness(is_ready=False, detail=str(detail)[:_DETAIL_CHARS])
