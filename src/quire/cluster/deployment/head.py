"""A Ray of the cluster's own: its head on this machine, started and ended as a process.

Owns its ports, its token and its temporary directory. It listens on loopback alone. Never uses
``ray stop``, which ends the Rays of others. Must not import ray.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from quire.cluster.deployment.folder import write_private
from quire.cluster.deployment.ports import is_taken
from quire.cluster.deployment.process import child_environment
from quire.cluster.deployment.running import (
    ProcessIdentity,
    boot_id,
    end_session,
    is_running,
    send,
    wait_ended,
)
from quire.cluster.deployment.spawning import session_of, spawn, spawned
from quire.cluster.deployment.spec import NUM_HEAD_PORTS, OwnHead
from quire.core.errors import EngineLost

_HOST = "127.0.0.1"
_NODE_MANAGER = 2
_FIRST_WORKER = 10
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 15.0
_FREE_TIMEOUT_S = 5.0
_INTERVAL_S = 0.1
_TOKEN = "ray.token"


class _Record(msgspec.Struct, frozen=True):
    """Describes a running head. ``temp_dir``: Ray's temporary directory; its sockets lie there, so
    its path must be short."""

    address: str
    temp_dir: str
    boot_id: str


@dataclass(frozen=True, slots=True)
class RayAccess:
    """How to reach a Ray. ``is_loopback``: it is a head of our own, which does not know the
    addresses of this machine."""

    address: str
    token_file: Path | None
    is_loopback: bool

    def environment(self) -> dict[str, str]:
        """Return the variables that Ray reads first, in each of its processes and in ours."""
        found = {"RAY_USAGE_STATS_ENABLED": "0"}
        if self.token_file is not None:
            found |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token_file)}
        if self.is_loopback:
            # without it Ray takes another address of the machine for 127.0.0.1, and listens on all
            found["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
            found["RAY_worker_niceness"] = "0"  # else 15, which keepers give on to nodes
        return found


class RayHead:
    """The head of the cluster whose files are in ``state_dir``. ``environment``: that of the head
    and of the processes of the cluster."""

    def __init__(self, state_dir: Path, spec: OwnHead, environment: Mapping[str, str]) -> None:
        self._spec = spec
        self._environment = environment
        self._token = state_dir / _TOKEN
        self._folder = state_dir / "ray"
        self._record_file = self._folder / "record.json"
        self._child_file = self._folder / "child"
        self._log = self._folder / "log"

    @property
    def access(self) -> RayAccess:
        record = self._record()
        address = f"{_HOST}:{self._spec.port}" if record is None else record.address
        return RayAccess(address, self._token, is_loopback=True)

    def is_running(self) -> bool:
        process = self._process()
        return process is not None and is_running(process)

    def start(self) -> None:
        """Start the head, unless it runs; return when it accepts actors.

        Raises:
            EngineLost: it ended, does not answer, cannot be noted, or finds its ports in use.
        """
        if self.is_running():
            return
        self.stop()  # remove what a killed head has left
        self._check_free()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._token.exists():
            write_private(self._token, secrets.token_hex(32).encode())
        temp_dir = tempfile.mkdtemp(prefix="quire-ray-")
        address = f"{_HOST}:{self._spec.port}"
        write_private(self._record_file, msgspec.json.encode(_Record(address, temp_dir, boot_id())))
        environment = child_environment(self._environment, self.access.environment())
        process = spawn(
            self._command(temp_dir),
            log=self._log,
            file=self._child_file,
            directory=self._folder,
            environment=environment,
        )
        self._wait(process)

    def stop(self) -> None:
        """End the head and all of its session, and remove its temporary directory. Idempotent."""
        process, record = self._process(), self._record()
        if process is not None:
            if send(process, signal.SIGTERM):
                asyncio.run(_ended(process, _STOP_TIMEOUT_S))
            session = session_of(self._child_file)
            if session is not None and process.boot_id == boot_id():
                end_session(session, process.start_ticks, self._folder)
        if record is not None:
            shutil.rmtree(record.temp_dir, ignore_errors=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _command(self, temp_dir: str) -> list[str]:
        port, cpus = self._spec.port, self._spec.cpus
        options = {
            "node-ip-address": _HOST,
            "port": port,
            "object-manager-port": port + 1,
            "node-manager-port": port + _NODE_MANAGER,
            "dashboard-agent-listen-port": port + 3,
            "dashboard-agent-grpc-port": port + 4,
            "runtime-env-agent-port": port + 5,
            "metrics-export-port": port + 6,
            "dashboard-port": port + 7,
            "min-worker-port": port + _FIRST_WORKER,
            "max-worker-port": port + NUM_HEAD_PORTS - 1,
            "num-cpus": (os.cpu_count() or 1) if cpus is None else cpus,
            "num-gpus": self._spec.gpus,
            "object-store-memory": self._spec.object_store_bytes,
            "temp-dir": temp_dir,
            "include-dashboard": "false",
            "include-log-monitor": "false",
        }
        written = [f"--{name}={value}" for name, value in options.items()]
        flags = [f"--{name}" for name in ("head", "block", "disable-usage-stats", "no-monitor")]
        return [sys.executable, "-m", "ray.scripts.scripts", "start", *flags, *written]

    def _ports(self) -> tuple[int, int]:
        """The ports at which it listens when it accepts actors."""
        return self._spec.port, self._spec.port + _NODE_MANAGER

    def _check_free(self) -> None:
        """What listens there already would be taken for this head. Processes of a former one may
        still be ending."""
        end_s = time.monotonic() + _FREE_TIMEOUT_S
        while taken := [port for port in self._ports() if is_taken(_HOST, port)]:
            if time.monotonic() > end_s:
                raise EngineLost(
                    f"Ray's head cannot start: something listens on the port {taken[0]}, such as "
                    "the Ray of another cluster; choose other ports with ray.port, or end that"
                )
            time.sleep(_INTERVAL_S)

    def _wait(self, process: ProcessIdentity | None) -> None:
        end_s = time.monotonic() + _START_TIMEOUT_S
        while process is not None and is_running(process) and time.monotonic() < end_s:
            if all(is_taken(_HOST, port) for port in self._ports()):
                return
            time.sleep(_INTERVAL_S)
        said = "\n  ".join(self._log.read_text("utf-8", "replace").splitlines()[-12:])
        self.stop()
        raise EngineLost(
            f"Ray's head did not start on the ports {self._spec.port} to "
            f"{self._spec.port + NUM_HEAD_PORTS - 1}; it last said:\n  {said}\n"
            "choose other ports with ray.port, or see what uses them"
        )

    def _process(self) -> ProcessIdentity | None:
        record = self._record()
        return None if record is None else spawned(self._child_file, record.boot_id)

    def _record(self) -> _Record | None:
        try:
            return msgspec.json.decode(self._record_file.read_bytes(), type=_Record)
        except FileNotFoundError:
            return None


async def _ended(process: ProcessIdentity, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(wait_ended(process), timeout_s)
    except TimeoutError:
        send(process, signal.SIGKILL)
        await wait_ended(process)
