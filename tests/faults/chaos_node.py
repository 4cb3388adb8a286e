"""A node in processes of its own, and what is counted of it from outside: its levels."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import httpx

READY_S = 600.0
SETTLED_S = 300.0
"""Bounds of waiting on a machine that is busy with other things; no measure of the node."""

_POLL_S = 0.2

ENGINE, SANDBOX = "quire.node.engines.engine_process", "quire.node.sandbox.sandbox_process"


@dataclass(frozen=True, slots=True)
class Levels:
    """What must come back to where it was. Worker threads of a pool come and stay, up to the pool's
    bound, and so do the files of idle connections: ``exceeds`` leaves room for those."""

    programs: int
    processes_of_table: int
    pending_commands: int
    exports: int
    held_blocks: int
    child_processes: int
    files: int
    threads: int
    temporary_files: int

    def exceeds(self, before: Levels) -> dict[str, tuple[int, int]]:
        """What is above ``before``: by name, then and now."""
        room = {"files": 16, "threads": 16}
        found = {}
        for field in fields(Levels):
            then, now = getattr(before, field.name), getattr(self, field.name)
            if now > then + room.get(field.name, 0):
                found[field.name] = (then, now)
        return found


class ChaosNode:
    """``start`` it, ``stop`` or ``kill`` it, start it again: same port, directories and options."""

    def __init__(self, directory: Path, sandbox_cache: Path) -> None:
        self._directory = directory
        self._cache = sandbox_cache
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._said = ""
        """What the node has said last of its health."""

    @property
    def log(self) -> Path:
        return self._directory / "node.log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
        environment |= {"TMPDIR": str(self.temporary), "QUIRE_COMPILED": "0"}
        command = [sys.executable, "-m", "quire.cli", "serve", "--port", str(self.port)]
        command += ["--num-threads", "1", "--kv-cache-bytes", "8MiB", "--max-connections", "256"]
        command += ["--data-dir", str(self._directory / "data"), "--sandbox-turn-ms", "2000"]
        command += ["--sandbox-cache-dir", str(self._cache), "--no-log-requests"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - it is killed from anywhere
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        await self.ready()

    async def ready(self) -> None:
        """Every engine serves, and is not about to be noticed as lost. An engine that was given up
        will not serve again, so nobody waits for it."""
        self._said = "it takes no connections"
        async with httpx.AsyncClient(base_url=self.url, timeout=READY_S) as http:
            await until(
                lambda: self._is_ready(http),
                READY_S,
                lambda: f"the node is not ready: {self._said}",
            )

    async def _is_ready(self, http: httpx.AsyncClient) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the node has ended: see its log"
        try:
            answer = await http.get("/ready")
        except httpx.TransportError:
            return False
        self._said = answer.text
        states = [engine["state"] for engine in answer.json()["engines"].values()]
        assert "failed" not in states, f"an engine was given up: {self._said}"
        return answer.status_code == 200

    def kill(self) -> list[int]:
        """SIGKILL; returns the processes that it had started."""
        children = [pid for pid, _ in self.children()]
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        return children

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(120)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise

    def children(self) -> list[tuple[int, str]]:
        """Process numbers and command lines, of the whole family."""
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (status := _read(entry / "stat")):
                parents[int(entry.name)] = int(status.rpartition(") ")[2].split()[1])
        family, found = {self.pid}, []
        while new := [pid for pid, parent in parents.items() if parent in family - {pid}]:
            new = [pid for pid in new if pid not in family]
            if not new:
                break
            family.update(new)
            found += [(pid, _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ")) for pid in new]
        return found

    def child(self, module: str) -> int | None:
        """The process that runs ``module``, if there is one."""
        return next((pid for pid, command in self.children() if module in command), None)

    async def levels(self, http: httpx.AsyncClient) -> Levels:
        text = (await http.get("/metrics")).text
        figures = {
            line.split("{")[0].split(" ")[0]: float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith("quire_")
        }
        held = figures["quire_kv_blocks"] - figures["quire_kv_blocks_free"]
        own = Path(f"/proc/{self.pid}")
        return Levels(
            programs=int(figures["quire_programs_running"]),
            processes_of_table=int(figures["quire_calls"]),
            pending_commands=int(figures["quire_pending_commands"]),
            exports=int(figures["quire_exports"]),
            held_blocks=int(held - figures["quire_kv_blocks_cached"]),
            child_processes=len(self.children()),
            files=len(list((own / "fd").iterdir())),
            threads=len(list((own / "task").iterdir())),
            temporary_files=len(list(self.temporary.rglob("*"))),
        )

    async def settled(self, before: Levels | None = None) -> Levels:
        """The levels once nothing runs and, with ``before``, nothing is above them any more."""
        last: list[Levels] = []

        async def is_settled() -> bool:
            last[:] = [await self.levels(http)]
            (now,) = last
            idle = not (now.programs or now.processes_of_table or now.pending_commands)
            return idle and (before is None or not now.exceeds(before))

        async with httpx.AsyncClient(base_url=self.url, timeout=READY_S) as http:
            await until(
                is_settled,
                SETTLED_S,
                lambda: f"above their level: {last[0].exceeds(before or last[0])}; now {last[0]}",
            )
        return last[0]


async def until(holds: Callable[[], Any], limit_s: float, what: str | Callable[[], str]) -> None:
    """Wait until ``await holds()``; ``what`` is the failure's message."""
    try:
        async with asyncio.timeout(limit_s):
            while not await holds():  # noqa: ASYNC110 - of another process
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise AssertionError(what if isinstance(what, str) else what()) from None


async def gone(pids: list[int]) -> None:
    """None of them runs any more."""

    async def are_gone() -> bool:
        return not any(_runs(pid) for pid in pids)

    await until(are_gone, SETTLED_S, f"some of {pids} still run")


def _runs(pid: int) -> bool:
    status = _read(Path(f"/proc/{pid}/stat"))
    return bool(status) and status.rpartition(") ")[2][0] != "Z"


def send_signal(pid: int | None, number: signal.Signals) -> bool:
    """Whether there was such a process."""
    if pid is None:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
