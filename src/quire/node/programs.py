"""Launched programs as their clients see them: public ids, records, messages, logs, results.

Lives on the edge's loop. Owns the table of programs, running and recently ended; a tenant sees its
own alone. Must not know how a program is executed (``Runtime`` does) nor what it computes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.core.errors import (
    ErrorRecord,
    InvalidArgument,
    ProgramTerminated,
    QuireError,
    QuotaExceeded,
    UnknownHandle,
)
from quire.core.ids import ProgramId, TenantId
from quire.node.ended_programs import EndedPrograms
from quire.node.loops import call_on
from quire.node.message_log import Attachment, MessageLog
from quire.node.program_records import (
    LOG_LEVELS,
    Launch,
    LogLevel,
    LogLine,
    ProgramLimits,
    ProgramRecord,
    PublicIds,
)
from quire.node.restarts import Restarts
from quire.programs.runtime.replay_log import MAX_RESTARTS, cannot_resume
from quire.programs.runtime.running import RunningProgram

SIGNALS = ("message", "end_of_input", "cancel")


class ProgramHandle:
    """One launched program. Every method belongs to the edge's loop."""

    def __init__(self, id: str, launch: Launch, name: str, limits: ProgramLimits) -> None:
        self.id = id
        self.tenant = launch.tenant
        self._launch = launch
        self.name = name
        self._messages = MessageLog(limits.messages)
        self._log: deque[LogLine] = deque(maxlen=limits.max_log_lines)
        self._started_s = time.time()
        self._ended_s: float | None = None
        self._result: Any = None
        self._ended = asyncio.Event()
        self._abandoned: QuireError | None = None
        self._is_wanted = True
        """Nobody has asked it to end."""
        self._callbacks: list[Callable[[], None]] = []
        self._restarts: Restarts | None = None
        self._start: Callable[[], RunningProgram]
        self._table: ProgramTable
        self._running: RunningProgram
        self._pump: asyncio.Task[None]

    def begin(
        self, start: Callable[[], RunningProgram], table: ProgramTable, restarts: Restarts | None
    ) -> None:
        """For the table. ``start`` has the runtime take it, now and whenever it begins again."""
        self._start, self._table, self._restarts = start, table, restarts
        if restarts is not None:
            loop = asyncio.get_running_loop()
            restarts.log.on_loss = lambda error: call_on(loop, self._begin_again, error)
        self._take(start())
        self._note("info", f"launched with {len(self._launch.args)} arguments")

    def _take(self, running: RunningProgram) -> None:
        self._running = running
        loop = asyncio.get_running_loop()
        running.listen_log(lambda *line: call_on(loop, self._printed, running, *line))
        self._pump = asyncio.create_task(self._follow(running), name=f"messages of {self.id}")

    def _begin_again(self, error: ErrorRecord) -> None:
        """What the program held in its engine is gone."""
        old, restarts = self._running, self._restarts
        is_over = restarts is None or old.state.ended or not self._is_wanted
        if restarts is None or is_over or self._abandoned is not None:
            old.cancel("it ends, and its engine was lost")
            return
        if restarts.is_full or restarts.log.num_restarts >= MAX_RESTARTS:
            why = "too much was said" if restarts.is_full else f"the {MAX_RESTARTS + 1}th time"
            self._give_up(cannot_resume(f"{why}; {error.message}"))
            return
        self._note("warning", f"{error.code}: {error.message}; the program is resumed")
        self._pump.cancel()
        old.cancel("it begins again")
        program = old.id
        try:
            self._take(self._start())
        except QuireError as exc:
            self._give_up(exc)
            return
        self._table.renamed(self, program)
        restarts.begin_again(self._running)

    def _give_up(self, error: QuireError) -> None:
        """End it with ``error``, whatever its last incarnation says."""
        self._abandoned = self._abandoned or error
        if not self._running.state.ended:
            self._running.cancel(error.message)
        if self._pump.done() or self._pump.cancelling():
            self._pump = asyncio.create_task(self._conclude(self._running))

    @property
    def program(self) -> ProgramId:
        return self._running.id

    @property
    def ended(self) -> bool:
        """The program has ended and its last message is in the log."""
        return self._ended.is_set()

    def record(self) -> ProgramRecord:
        error = self._abandoned or self._running.error
        return ProgramRecord(
            id=self.id,
            program=self._running.id,
            tenant=self.tenant,
            name=self.name,
            args=self._launch.args,
            client_id=self._launch.client_id,
            parent=self._launch.parent,
            priority=self._launch.priority,
            state=self._running.state,
            started_s=self._started_s,
            ended_s=self._ended_s,
            result=self._result,
            error=None if error is None else error.record(),
            num_messages=self._messages.num_messages,
            num_dropped_messages=self._messages.num_dropped,
            seed=self._launch.seed,
        )

    async def send(self, message: str) -> None:
        """Send to the program's ``receive``; waits while it has too many unread messages.

        Raises:
            MailboxFull: it reads nothing at all.
            MailboxClosed: it has ended, or its input was closed.
        """
        if self._restarts is None:
            await self._running.send(message)
        else:
            await self._restarts.send(self._running, message)

    def attach(self, after: int = 0) -> Attachment:
        """Read the program's messages with a sequence above ``after``; any number of clients may.

        Close the attachment when done: one that is neither read nor closed slows the program down.
        """
        return self._messages.attach(after)

    def signal(self, name: str, message: str | None = None) -> None:
        """``message`` (with its text), ``end_of_input`` or ``cancel``.

        Raises:
            InvalidArgument: another name, or a text where none or one belongs.
            MailboxFull, MailboxClosed: see ``send``.
        """
        if name not in SIGNALS:
            raise InvalidArgument(f"no signal {name!r}: use one of {', '.join(SIGNALS)}")
        if (name == "message") is (message is None):
            raise InvalidArgument("the signal 'message' has a text, the others have none")
        self._note("info", f"signal {name}")
        if message is not None:
            if self._restarts is None or self._restarts.note(self._running, message):
                self._running.send(message)
        elif name == "end_of_input":
            if self._restarts is None:
                self._running.close_input()
            else:
                self._restarts.close_input(self._running)
        else:
            self._is_wanted = False
            self._running.cancel("cancelled by a signal of its client")

    def terminate(self, reason: str = "terminated by its owner") -> None:
        """Idempotent, in every state; ``result`` says when it has ended."""
        self._is_wanted = False
        if not self._running.state.ended:
            self._note("warning", f"terminate: {reason}")
            self._running.cancel(reason)

    async def result(self) -> Any:
        """What the program returned, once everything it held is free.

        Raises:
            ProgramFailed, ProgramCancelled, ProgramTerminated, or the node's own error.
        """
        await self._ended.wait()
        if (error := self._abandoned or self._running.error) is not None:
            raise error
        return self._result

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the program has ended, soon if it has already."""
        if self.ended:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._callbacks.append(callback)

    def logs(self) -> Sequence[LogLine]:
        """What the node noted about the program, oldest first."""
        return tuple(self._log)

    async def close(self) -> None:
        """The node has stopped its programs: let those who wait know, whatever state this one is
        left in."""
        self._messages.close()
        if self._running.state.ended:
            await self._ended.wait()
        elif not self.ended:
            self._pump.cancel()
            await asyncio.wait({self._pump})
            self._abandoned = ProgramTerminated(
                f"program {self.name!r} blocked its loop while the node stopped and was left behind"
            )
            self._note("error", self._abandoned.message)
            self._ended.set()

    def note_blocked(self, stack: str) -> None:
        """For the watchdog: the program has not awaited anything for too long."""
        self._note("error", f"the program blocks its loop: await something\n{stack}")

    async def _follow(self, running: RunningProgram) -> None:
        restarts = self._restarts
        async for message in running.messages():
            try:
                if restarts is None or restarts.is_new(message):
                    await self._messages.put(message)
                    if restarts is not None:
                        restarts.note_sent(message)
            except QuireError as exc:
                self._give_up(exc)
                break
        await self._conclude(running)

    async def _conclude(self, running: RunningProgram) -> None:
        try:
            self._result = await running.result()
            if self._abandoned is None:
                self._note("info", "finished")
        except QuireError as exc:
            said = self._abandoned or exc
            self._note("error", f"{said.code}: {said.message}")
        for error in running.unobserved_failures:
            self._note("warning", f"a failure that nobody awaited: {error.code}: {error.message}")
        for task in running.leaked_tasks:
            self._note("warning", f"a task was still running at the end: {task}")
        if self._restarts is not None:
            self._restarts.end()
        self._restarts = None  # the handle stays for a while: not with all that the program heard
        del self._start
        self._ended_s = time.time()
        self._messages.close()
        self._ended.set()
        self._table.ended(self, self._messages.num_bytes)
        for callback in self._callbacks:
            callback()

    def _printed(
        self, running: RunningProgram, level: str, text: str, fields: Mapping[str, Any]
    ) -> None:
        """Logged by the program, or printed: only a sandboxed one's prints are known as its own."""
        if running is not self._running:
            return  # of an incarnation that is over
        for line in text.splitlines() or [""]:
            if self._restarts is not None and self._restarts.prints_again():
                continue
            self._note(LOG_LEVELS.get(level, "info"), line, fields)

    def _note(self, level: LogLevel, text: str, fields: Mapping[str, Any] | None = None) -> None:
        self._log.append(LogLine(time.time(), level, text, fields or {}))


class ProgramTable:
    """Launched programs by public id."""

    def __init__(self, limits: ProgramLimits | None = None) -> None:
        self._limits = limits or ProgramLimits()
        self._handles: dict[str, ProgramHandle] = {}
        self._by_program: dict[ProgramId, ProgramHandle] = {}
        self._ended = EndedPrograms(self._limits.max_ended, self._limits.max_ended_bytes)
        self._running: dict[TenantId, dict[str, ProgramHandle]] = {}
        self._new_id = PublicIds()
        self._idle = asyncio.Event()
        self._idle.set()

    def launch(
        self,
        name: str,
        launch: Launch,
        start: Callable[[], RunningProgram],
        restarts: Restarts | None = None,
    ) -> ProgramHandle:
        """Enter a program; ``start`` has its runtime start it. With ``restarts`` it begins again
        when its engine was lost.

        Raises:
            QuotaExceeded: the tenant has too many running.
        """
        running = self._running.get(launch.tenant, ())
        if len(running) >= self._limits.max_running:
            raise QuotaExceeded(
                f"{len(running)} programs of this tenant are running, "
                f"{self._limits.max_running} are allowed: wait for one to end, or terminate one"
            )
        handle = ProgramHandle(self._new_id(), launch, name, self._limits)
        handle.begin(start, self, restarts)
        self._running.setdefault(launch.tenant, {})[handle.id] = handle
        self._handles[handle.id] = handle
        self._by_program[handle.program] = handle
        self._idle.clear()
        return handle

    def find(self, wanted: str, tenant: TenantId) -> ProgramHandle:
        """Raises ``UnknownHandle`` for an id that does not exist for this tenant (any more)."""
        handle = self._handles.get(wanted)
        if handle is None or handle.tenant != tenant:
            raise UnknownHandle(
                f"no program {wanted!r}: it was never launched by this tenant, or ended long ago"
            )
        return handle

    def all(self, tenant: TenantId | None = None) -> list[ProgramHandle]:
        """In order of launch, ended ones included; of every tenant for ``None``."""
        return [
            handle for handle in self._handles.values() if tenant is None or handle.tenant == tenant
        ]

    def running(self, tenant: TenantId | None = None) -> list[ProgramHandle]:
        """In order of launch within a tenant."""
        if tenant is not None:
            return list(self._running.get(tenant, {}).values())
        return [handle for running in self._running.values() for handle in running.values()]

    def public_id(self, program: ProgramId) -> str | None:
        handle = self._by_program.get(program)
        return None if handle is None else handle.id

    def note_blocked(self, program: str | None, stack: str) -> None:
        """The watchdog has found a blocked loop; ``program`` is what it calls the blocking one."""
        for handle in self.running():
            if program == f"{handle.program} ({handle.name})":
                handle.note_blocked(stack)

    async def wait_idle(self) -> None:
        """Returns when no program is running."""
        await self._idle.wait()

    async def close(self) -> None:
        """The runtime has been closed."""
        for handle in self.all():
            await handle.close()

    def renamed(self, handle: ProgramHandle, before: ProgramId) -> None:
        """For the handle: its program has begun again, under another number."""
        self._by_program.pop(before, None)
        self._by_program[handle.program] = handle

    def ended(self, handle: ProgramHandle, num_bytes: int) -> None:
        """For the handle: its last message is in the log, with which it keeps ``num_bytes``."""
        for forgotten in self._ended.add(handle.tenant, handle.id, num_bytes):
            del self._by_program[self._handles.pop(forgotten).program]
        running = self._running[handle.tenant]
        running.pop(handle.id, None)
        if not running:
            del self._running[handle.tenant]
        if not self._running:
            self._idle.set()


__all__ = [
    "SIGNALS",
    "Launch",
    "LogLine",
    "ProgramHandle",
    "ProgramLimits",
    "ProgramRecord",
    "ProgramTable",
]
