"""Keeps one process of a cluster: adopts or starts it, probes whether it is ready, starts it again
when it ends, and ends it on request.

Owns the process's folder while it lives, and nothing else: where a keeper runs, and what restarts
the keeper, are not its concern.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from quire.cluster.deployment.child import end_child, end_rest, running_child, start_child
from quire.cluster.deployment.folder import ProcessFolder, StartRecord
from quire.cluster.deployment.pacing import Pacing
from quire.cluster.deployment.process import (
    Phase,
    ProcessSpec,
    ProcessState,
    child_environment,
    url_of,
)
from quire.cluster.deployment.running import ProcessIdentity, boot_id, wait_ended
from quire.core.errors import EngineLost, QuireError

if TYPE_CHECKING:  # the module has the engines' arrays too, which 'quire status' need not import
    from quire.core.interfaces import ProgramClock

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a process takes work; ``detail``: what it says of itself, such as why it does not."""

    is_ready: bool
    detail: str = ""


Probe = Callable[[str], Awaitable[Readiness]]
"""Asks the process at a URL whether it takes work."""

Tell = Callable[[str, ProcessSpec], Awaitable[str]]
"""Has the router at a URL use the nodes of its spec; returns why that failed, or an empty text."""

CommandOf = Callable[[ProcessSpec, str, str], list[str]]
"""Returns the command line of a process, for an address and the folder of its keys."""

IsTaken = Callable[[str, int], bool]
"""Returns whether something listens at a host and port."""


_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class KeeperTimes:
    """Times of a keeper. ``kill_margin_s``: how long a process may take beyond its own time for
    draining before it is killed."""

    probe_s: float = 0.5
    lock_s: float = 0.2
    kill_margin_s: float = 10.0


class Keeper:
    """The keeper of one process. ``assignment`` identifies this order to keep the process: a keeper
    that is started again under the same one goes on where the former was, even in ending the
    process. ``state`` may be read from any thread; everything else belongs to the loop of
    ``run``."""

    def __init__(
        self,
        spec: ProcessSpec,
        folder: ProcessFolder,
        assignment: str,
        *,
        host: str,
        machine: str,
        environment: Mapping[str, str],
        probe: Probe,
        tell: Tell,
        clock: ProgramClock,
        is_taken: IsTaken,
        command_of: CommandOf = ProcessSpec.command,
        pacing: Pacing | None = None,
        times: KeeperTimes | None = None,
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._assignment = assignment
        self._host = host
        self._environment = environment
        self._probe = probe
        self._tell = tell
        self._clock = clock
        self._is_taken = is_taken
        self._command_of = command_of
        self._pacing = pacing or Pacing()
        self._times = times or KeeperTimes()
        self._stopping = asyncio.Event()
        self._restarts = 0
        self._state = ProcessState(
            name=spec.name,
            group=spec.group,
            kind=spec.kind,
            digest=spec.digest,
            phase="starting",
            url=url_of(host, spec.port),
            machine=machine,
        )

    @property
    def state(self) -> ProcessState:
        return self._state

    def request_stop(self) -> None:
        """Drain the process, end it and do not start it again. Idempotent."""
        self._stopping.set()
        self._folder.make()
        self._folder.leave(self._assignment)

    def remove_files(self) -> None:
        """Remove the files of the process if it is stopped; otherwise they are needed to find
        it."""
        if self._state.phase == "stopped":
            self._folder.remove()

    async def run(self) -> None:
        """Keep the process until it has been ended on request."""
        while True:
            with self._folder.locked() as is_mine:
                if is_mine:
                    await self._keep()
                    return
            self._say("starting", "another keeper has it")
            await self._clock.sleep(self._times.lock_s)

    async def _keep(self) -> None:
        if self._folder.is_leaving(self._assignment):
            self._stopping.set()
        child = await self._adopted()
        while not self._stopping.is_set():
            try:
                if child is None:
                    child = self._started()
            except (QuireError, OSError) as exc:  # a full disk has room again later
                ran_s, detail = 0.0, str(exc)
            else:
                started_s = self._clock.now_s()
                await self._live(child)
                if self._stopping.is_set():
                    break
                end_rest(self._folder, child)
                ran_s, detail = self._clock.now_s() - started_s, "it ended by itself"
            child = None
            await self._pause(ran_s, detail)
        self._say("stopping")
        if child is not None:
            grace_s = self._spec.drain_s + self._times.kill_margin_s
            await end_child(self._folder, child, grace_s)
        self._set(phase="stopped", pid=None, since_unix_s=None)

    async def _adopted(self) -> ProcessIdentity | None:
        """Return the process that runs already, if it is the one that is to run; end any other."""
        record, child = self._folder.record(), running_child(self._folder)
        if record is None or child is None:
            return None
        if record.spec.digest == self._spec.digest:  # its nodes may differ: it is given them later
            self._restarts = record.restarts
            self._set(
                url=record.url,
                nodes=record.spec.nodes,
                pid=child.pid,
                since_unix_s=record.started_unix_s,
                restarts=record.restarts,
                adopted=True,
            )
            return child
        if not self._stopping.is_set():
            self._say("starting", "the former process drains")
        grace_s = record.spec.drain_s + self._times.kill_margin_s
        await end_child(self._folder, child, grace_s)
        return None

    def _started(self) -> ProcessIdentity:
        if self._is_taken(self._host, self._spec.port):  # which would be taken for this process
            raise EngineLost(
                f"something else listens at {self._state.url}: end it, or give the group another "
                "port"
            )
        former = self._folder.record()
        devices = self._environment.get(_DEVICES)
        if former is not None and former.spec.gpus == self._spec.gpus:
            # Ray may have given this keeper other devices than the former one; those of the former
            # one are still accounted to this process by what runs beside it
            devices = former.devices
        environment = child_environment(self._environment, self._spec.environment)
        if devices is not None:
            environment[_DEVICES] = devices
        self._folder.make()
        record = StartRecord(
            spec=self._spec,
            url=url_of(self._host, self._spec.port),
            boot_id=boot_id(),
            started_unix_s=self._clock.unix_s(),
            restarts=self._restarts,
            devices=devices,
            log_start=self._folder.log.stat().st_size if self._folder.log.exists() else 0,
        )
        command = self._command_of(self._spec, self._host, str(self._folder.path))
        child = start_child(self._folder, record, command, environment)
        self._set(
            phase="starting",
            url=record.url,
            nodes=self._spec.nodes,
            pid=child.pid,
            since_unix_s=record.started_unix_s,
            restarts=self._restarts,
            adopted=False,
        )
        return child

    async def _live(self, child: ProcessIdentity) -> None:
        """Wait until ``child`` has ended, or is to end."""
        ended = asyncio.create_task(wait_ended(child))
        stopping = asyncio.create_task(self._stopping.wait())
        looking = asyncio.create_task(self._look())
        try:
            await asyncio.wait({ended, stopping, looking}, return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                looking.result()  # raises what failed in the keeper itself
        finally:
            for task in (ended, stopping, looking):
                task.cancel()
            await asyncio.gather(ended, stopping, looking, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            found = await self._probe(self._state.url)
            phase: Phase = "ready" if found.is_ready else "starting"
            if not found.is_ready and self._state.phase in ("ready", "unready"):
                phase = "unready"
            try:
                self._folder.bound_log()
                detail = await self._told_nodes() or found.detail
            except OSError as exc:  # the process runs, and a full disk has room again later
                detail = str(exc)
            if (phase, detail) != (self._state.phase, self._state.detail):
                self._say(phase, detail)
            await self._clock.sleep(self._times.probe_s)

    async def _told_nodes(self) -> str:
        """Have the process use the nodes of its spec, if it uses others; return why it does not
        yet, or an empty text."""
        if self._state.nodes == self._spec.nodes:
            return ""
        if why := await self._tell(self._state.url, self._spec):
            return f"its nodes are to change: {why}"
        if (record := self._folder.record()) is not None:
            self._folder.change_record(msgspec.structs.replace(record, spec=self._spec))
        self._set(nodes=self._spec.nodes)
        return ""

    async def _pause(self, ran_s: float, detail: str) -> None:
        self._restarts += 1
        pause_s = self._pacing.pause_s(ran_s)
        logger.warning("%s is started again in %.1f s: %s", self._spec.name, pause_s, detail)
        self._set(phase="waiting", pid=None, since_unix_s=None, restarts=self._restarts)
        self._set(detail=f"{detail}; it is started again in {pause_s:.1f} s")
        stopping = asyncio.create_task(self._stopping.wait())
        pausing = asyncio.create_task(self._clock.sleep(pause_s))
        await asyncio.wait({stopping, pausing}, return_when=asyncio.FIRST_COMPLETED)
        for task in (stopping, pausing):
            task.cancel()

    def _say(self, phase: Phase, detail: str = "") -> None:
        self._set(phase=phase, detail=detail)

    def _set(self, **changes: object) -> None:
        said = () if changes.get("phase") == "ready" else self._folder.said()
        self._state = msgspec.structs.replace(self._state, **changes, said=said)
