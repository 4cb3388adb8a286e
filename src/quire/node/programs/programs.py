"""Launched programs by public id.

Lives on the edge's loop. Owns the table of programs, running and recently ended; a tenant sees only
its own. Must not know how a program is executed nor what it has sent to its clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from quire.core.errors import (
    AlreadyExists,
    QuotaExceeded,
    UnknownHandle,
)
from quire.core.ids import ProgramId, TenantId
from quire.node.loops import LoopCalls
from quire.node.programs.ended import EndedPrograms
from quire.node.programs.figures import ProgramFigures, ResourceUsage
from quire.node.programs.handle import ProgramHandle
from quire.node.programs.records import (
    ProgramLaunch,
    ProgramLimits,
)
from quire.node.programs.restarting.handing_over import Origin
from quire.node.programs.restarting.record_feed import RecordFeed
from quire.node.programs.restarting.restarts import Restarts
from quire.node.public_ids import RandomNames
from quire.programs.runtime.running import RunningProgram


class ProgramTable:
    """The table of programs. ``figures``: what programs have used; entries are forgotten with their
    records. ``on_forget`` is called with the programs whose records are forgotten."""

    def __init__(
        self,
        limits: ProgramLimits | None = None,
        figures: ProgramFigures | None = None,
        on_forget: Callable[[Sequence[ProgramId]], None] = lambda _: None,
    ) -> None:
        self._on_forget = on_forget
        self._figures = ProgramFigures() if figures is None else figures
        self._limits = limits or ProgramLimits()
        self._handles: dict[str, ProgramHandle] = {}
        self._by_program: dict[ProgramId, ProgramHandle] = {}
        self._ended = EndedPrograms(self._limits.max_ended, self._limits.max_ended_bytes)
        self._running: dict[TenantId, dict[str, ProgramHandle]] = {}
        self._names = RandomNames()
        self._feeds: dict[TenantId, RecordFeed] = {}
        self._calls: LoopCalls | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def launch(
        self,
        name: str,
        launch: ProgramLaunch,
        start: Callable[[], RunningProgram],
        restarts: Restarts | None = None,
        origin: Origin | None = None,
        public_id: str | None = None,
        above: ProgramHandle | None = None,
    ) -> ProgramHandle:
        """Enter a program; ``start`` gives it to its runtime. With ``restarts`` it is started again
        when its engine was lost. ``public_id``: the id of a program that comes from another node.
        ``above``: the program that launches it.

        Raises:
            AlreadyExists: a program has this id.
            QuotaExceeded: the tenant has too many running programs.
        """
        if public_id in self._handles:
            raise AlreadyExists(f"there is a program {public_id!r}, running or ended")
        running = self._running.get(launch.tenant, ())
        if len(running) >= self._limits.max_running:
            raise QuotaExceeded(
                f"{len(running)} programs of this tenant are running, "
                f"{self._limits.max_running} are allowed: wait for one to end, or terminate one"
            )
        if self._calls is None:
            self._calls = LoopCalls()
            self._calls.begin(asyncio.get_running_loop())
        handle = ProgramHandle(public_id or self._names.program_id(), launch, name, self._limits)
        handle.begin(start, self, restarts, origin, above)
        self._running.setdefault(launch.tenant, {})[handle.id] = handle
        self._handles[handle.id] = handle
        self._by_program[handle.program] = handle
        self._idle.clear()
        return handle

    def check_room(self, tenant: TenantId, ids: Sequence[str]) -> None:
        """Check that programs of other nodes with these ids may come.

        Raises:
            AlreadyExists: a program has one of them.
            QuotaExceeded: the tenant would have too many.
        """
        for id in ids:
            if id in self._handles:
                raise AlreadyExists(f"there is a program {id!r}, running or ended")
        num_running = len(self._running.get(tenant, ()))
        if num_running + len(ids) > self._limits.max_running:
            raise QuotaExceeded(
                f"{num_running} programs of this tenant are running, {self._limits.max_running} "
                f"are allowed, and {len(ids)} are to come from another node"
            )

    def soon(self, callback: Callable[[], object]) -> None:
        """For handles, from any thread: call ``callback`` soon on the edge's loop."""
        assert self._calls is not None, "a program was launched"
        self._calls.soon(callback)

    def find(self, wanted: str, tenant: TenantId) -> ProgramHandle:
        """Return the program with the id ``wanted``.

        Raises:
            UnknownHandle: this tenant never had such a program, or no longer has it.
        """
        handle = self._handles.get(wanted)
        if handle is None or handle.tenant != tenant:
            raise UnknownHandle(
                f"no program {wanted!r}: it was never launched by this tenant, or ended long ago"
            )
        return handle

    def all(self, tenant: TenantId | None = None) -> list[ProgramHandle]:
        """The programs in order of launch, including ended ones; of every tenant for ``None``."""
        return [
            handle for handle in self._handles.values() if tenant is None or handle.tenant == tenant
        ]

    def running(self, tenant: TenantId | None = None) -> list[ProgramHandle]:
        """The running programs, in order of launch within a tenant."""
        if tenant is not None:
            return list(self._running.get(tenant, {}).values())
        return [handle for running in self._running.values() for handle in running.values()]

    def of(self, program: ProgramId) -> ProgramHandle | None:
        """Return the launched program with this number, or None."""
        return self._by_program.get(program)

    def public_id(self, program: ProgramId) -> str | None:
        handle = self.of(program)
        return None if handle is None else handle.id

    def note_blocked(self, program: str | None, stack: str) -> None:
        """Note that the watchdog has found a blocked loop; ``program`` names what blocks it."""
        for handle in self.running():
            if program == f"{handle.program} ({handle.name})":
                handle.note_blocked(stack)

    async def wait_idle(self) -> None:
        """Return when no program is running."""
        await self._idle.wait()

    def records(self, tenant: TenantId) -> RecordFeed:
        """The feed of the records of the tenant's restartable programs."""
        feed = self._feeds.get(tenant)
        if feed is None:
            feed = self._feeds[tenant] = RecordFeed()
        return feed

    def stop_telling(self) -> None:
        """Close the feeds of records, since the node stops: no message waits for a router now."""
        for feed in self._feeds.values():
            feed.close()

    async def close(self) -> None:
        """Close all handles, after the runtimes have been closed."""
        self.stop_telling()
        for handle in self.all():
            await handle.life.close()

    def used(self, incarnations: Sequence[ProgramId], *, ended: bool) -> ResourceUsage | None:
        """For programs: the resources that one of them has used, as far as they are known."""
        return self._figures.of(incarnations, ended=ended)

    def renamed(self, id: str, before: ProgramId, now: ProgramId) -> None:
        """For programs: one has been restarted under another number."""
        self._by_program.pop(before, None)
        self._by_program[now] = self._handles[id]

    def left(self, id: str) -> None:
        """For programs: forget one, which goes on at another node."""
        handle = self._handles.pop(id)
        del self._by_program[handle.program]
        self._figures.forget(handle.incarnations)
        self._on_forget(handle.incarnations)
        self._ended.drop(handle.tenant, handle.id)
        self._runs_no_more(handle)

    def ended(self, id: str, num_bytes: int) -> None:
        """For programs: the last message of one is in the log, and ``num_bytes`` are kept of it."""
        handle = self._handles[id]
        for forgotten in self._ended.add(handle.tenant, handle.id, num_bytes):
            gone = self._handles.pop(forgotten)
            del self._by_program[gone.program]
            self._figures.forget(gone.incarnations)
            self._on_forget(gone.incarnations)
        self._runs_no_more(handle)

    def _runs_no_more(self, handle: ProgramHandle) -> None:
        running = self._running.get(handle.tenant, {})
        running.pop(handle.id, None)
        if not running:
            self._running.pop(handle.tenant, None)
        if not self._running:
            self._idle.set()
