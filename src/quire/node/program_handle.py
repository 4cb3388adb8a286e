"""One launched program as its clients see it: its record, messages, log and result.

Lives on the edge's loop. Connects the program's incarnations with its clients. Must not know how a
program is executed (``Runtime`` does) nor what it computes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from quire.core.errors import (
    EngineLost,
    ErrorRecord,
    InvalidArgument,
    ProgramTerminated,
    QuireError,
)
from quire.core.ids import ProgramId
from quire.node.handing_over import Departure, HandedProgram, Origin, handed, movable
from quire.node.loops import call_on
from quire.node.message_log import MessageLog, MessageReader
from quire.node.program_figures import with_guest
from quire.node.program_place import ProgramPlace
from quire.node.program_records import (
    LOG_LEVELS,
    LogLevel,
    ProgramLaunch,
    ProgramLimits,
    ProgramLogLine,
    ProgramRecord,
    result_bytes,
)
from quire.node.restarts import Restarts
from quire.programs.runtime.replay_log import MAX_RESTARTS, cannot_resume
from quire.programs.runtime.running import GuestSpent, RunningProgram
from quire.programs.shown_values import problem_with

SIGNALS = ("message", "end_of_input", "cancel")


class ProgramHandle:
    """One launched program. Every method belongs to the edge's loop."""

    def __init__(self, id: str, launch: ProgramLaunch, name: str, limits: ProgramLimits) -> None:
        self.id = id
        self.tenant = launch.tenant
        self._launch = launch
        self.name = name
        self._messages = MessageLog(limits.messages)
        self._log: deque[ProgramLogLine] = deque(maxlen=limits.max_log_lines)
        self._started_s = time.time()
        self._started_at = time.monotonic()
        self._ended_s: float | None = None
        self._duration_s: float | None = None
        self._earlier: list[ProgramId] = []
        self._spent: list[GuestSpent] = []
        """One entry for each incarnation."""
        self.num_bytes = 0
        """Bytes that the handle keeps after the end: messages, result, arguments and log."""
        self._result: Any = None
        self._ended = asyncio.Event()
        self._abandoned: QuireError | None = None
        self._is_wanted = True
        """Nobody has asked the program to end."""
        self._callbacks: list[Callable[[], None]] = []
        self._restarts: Restarts | None = None
        self._start: Callable[[], RunningProgram] | None = None
        """Only for a restartable program."""
        self._origin: Origin | None = None
        self._handed_over_s = limits.handed_over_s
        self._departure: Departure | None = None
        self._table: ProgramPlace
        self._running: RunningProgram
        self._storing: asyncio.Task[None] | None = None
        """A message that waits because the log is full and its readers are slow."""

    def begin(
        self,
        start: Callable[[], RunningProgram],
        table: ProgramPlace,
        restarts: Restarts | None,
        origin: Origin | None = None,
    ) -> None:
        """For the table. ``start`` gives the program to its runtime, now and at each restart."""
        self._table, self._restarts, self._origin = table, restarts, origin
        if restarts is not None:
            self._start = start
            loop = asyncio.get_running_loop()
            restarts.log.on_loss = lambda error: call_on(loop, self._begin_again, error)
        self._take_up(start())
        num_args = len(self._launch.args) + len(self._launch.named)
        self._note("info", f"launched with {num_args} argument{'s' * (num_args != 1)}")

    def _take_up(self, running: RunningProgram) -> None:
        self._running = running
        self._spent.append(running.spent)
        running.listen_log(partial(self._print_soon, running))
        running.follow(partial(self._table.soon, partial(self._hear, running)))

    def _begin_again(self, error: ErrorRecord, *, was_away: bool = False) -> None:
        """The pages that the program held in its engine are lost."""
        old, restarts = self._running, self._restarts
        if self._departure is not None:
            self._departure.end(has_stopped=True)
            old.cancel("it moves to another node")
            return
        is_over = self._is_over or (old.state.ended and not was_away)
        if restarts is None or self._start is None or is_over:
            old.cancel("it ends, and its engine was lost")
            return
        if restarts.is_full or restarts.log.num_restarts >= MAX_RESTARTS:
            why = "too much was said" if restarts.is_full else f"the {MAX_RESTARTS + 1}th time"
            self._give_up(cannot_resume(f"{why}; {error.message}"))
            self._hear(old)
            return
        self._note("warning", f"{error.code}: {error.message}; the program is resumed")
        self._stop_storing()
        old.cancel("it begins again")
        program = old.id
        try:
            self._take_up(self._start())
        except QuireError as exc:
            self._give_up(exc)
            self._hear(old)
            return
        self._earlier.append(program)
        self._table.renamed(self, program)
        restarts.begin_again(self._running)

    async def hand_over(self) -> HandedProgram:
        """Stop the program here, so that another node can go on with it; ``leave`` or ``stay``
        follows.

        Raises:
            InvalidArgument: it cannot go, or has ended; the message says why.
        """
        is_here = not self._is_over and self._departure is None
        restarts = movable(self.id, self._launch, self._origin, self._restarts, is_here=is_here)
        self._departure = Departure()
        restarts.log.stop()
        await self._departure.stopped(self.id)
        self._stop_storing()
        loop = asyncio.get_running_loop()
        loop.call_later(self._handed_over_s, self._end_unheard, self._departure)
        assert self._origin is not None
        return handed(self.id, self.name, self._origin, self._launch, restarts)

    def go_on(self) -> None:
        """The program has come from another node."""
        assert self._restarts is not None
        self._note("info", "it goes on from another node")
        self._restarts.begin_again(self._running)

    def stay(self) -> None:
        """No other node has taken it: it begins again here. Idempotent."""
        if self._is_away:
            self._departure = None
            lost = EngineLost("no other node has taken the program")
            self._begin_again(lost.record(), was_away=True)
            self._hear(self._running)  # one that somebody has ended meanwhile has its end now

    def leave(self) -> None:
        """Another node has taken it: its clients here are told so, and its record is forgotten.
        Idempotent."""
        if not self._is_away or self.ended or self._restarts is None:
            return
        self._abandoned = EngineLost(
            f"program {self.id} has moved to another node: ask the router for it"
        )
        self._restarts.end()
        self._messages.close()
        self._ended.set()
        self._table.left(self)

    def _end_unheard(self, departure: Departure) -> None:
        """Whoever has the record has not said whether another node goes on with the program: it may
        run there, so it does not here."""
        if self._departure is departure and not self.ended:
            self._departure = None
            self._give_up(
                ProgramTerminated(
                    f"program {self.id} was handed over, and for {self._handed_over_s:g} s nobody "
                    "has said whether another node took it: ask the router for it"
                )
            )
            self._hear(self._running)

    @property
    def has_left(self) -> bool:
        return self._is_away and self.ended

    @property
    def _is_away(self) -> bool:
        return self._departure is not None and self._departure.has_stopped

    @property
    def _is_over(self) -> bool:
        return self.ended or not self._is_wanted or self._abandoned is not None

    def _check_here(self) -> None:
        if self._departure is not None:
            raise EngineLost(f"program {self.id} moves to another node now: send it again")

    def _give_up(self, error: QuireError) -> None:
        """End the program with ``error``, whatever its last incarnation returns."""
        self._abandoned = self._abandoned or error
        if not self._running.state.ended:
            self._running.cancel(error.message)
        self._stop_storing()

    def _stop_storing(self) -> None:
        if self._storing is not None:
            self._storing.cancel()
            self._storing = None

    @property
    def program(self) -> ProgramId:
        return self._running.id

    @property
    def incarnations(self) -> list[ProgramId]:
        """Every number that the program has had."""
        return [*self._earlier, self._running.id]

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
            parent_thread=self._launch.parent_thread,
            priority=self._launch.priority,
            state=self._running.state,
            started_s=self._started_s,
            ended_s=self._ended_s,
            result=self._result,
            error=None if error is None else error.record(),
            num_messages=self._messages.num_messages,
            num_dropped_messages=self._messages.num_dropped,
            seed=self._launch.seed,
            named=self._launch.named,
            duration_s=self._duration_s,
            used=with_guest(self._table.used(self), self._spent),
            form=self._launch.form,
        )

    async def send(self, message: str) -> None:
        """Send to the program's ``receive``; waits while the program has too many unread messages.

        Raises:
            MailboxFull: the program reads no messages.
            MailboxClosed: it has ended, or its input was closed.
        """
        self._check_here()
        if self._restarts is None:
            await self._running.send(message)
        else:
            await self._restarts.send(self._running, message)

    def attach(self, after: int = 0) -> MessageReader:
        """A reader of the program's messages with a sequence number above ``after``; any number of
        clients may have one. Close it when done: a reader that is neither read nor closed slows the
        program down."""
        return self._messages.attach(after)

    def signal(self, name: str, message: str | None = None) -> None:
        """``message`` (with its text), ``end_of_input`` or ``cancel``.

        Raises:
            InvalidArgument: another name, or a text is missing or not expected.
            MailboxFull, MailboxClosed: see ``send``.
        """
        if name not in SIGNALS:
            raise InvalidArgument(f"no signal {name!r}: use one of {', '.join(SIGNALS)}")
        if (name == "message") is (message is None):
            given = "none" if message is None else "one"
            raise InvalidArgument(
                f"signal {name!r} was given {given}: 'message' needs a text, the others take none"
            )
        self._check_here()
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
        """Idempotent, in every state; ``result`` returns when the program has ended."""
        self._is_wanted = False
        if not self._running.state.ended:
            self._note("warning", f"terminate: {reason}")
            self._running.cancel(reason)

    async def result(self) -> Any:
        """The program's result, once everything that it held is free.

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
        """Call ``callback`` once when the program has ended, or soon if it already has."""
        if self.ended:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._callbacks.append(callback)

    def logs(self) -> Sequence[ProgramLogLine]:
        """The program's log, oldest entry first."""
        return tuple(self._log)

    async def close(self) -> None:
        """The node has stopped its programs: release the waiters, whatever state this program is
        in."""
        self._messages.close()
        if self._is_away:
            self.leave()
        elif self._running.state.ended:
            await self._ended.wait()
        elif not self.ended:
            self._stop_storing()
            self._abandoned = ProgramTerminated(
                f"program {self.name!r} blocked its loop while the node stopped and was left behind"
            )
            self._note("error", self._abandoned.message)
            self._ended.set()

    def note_blocked(self, stack: str) -> None:
        """For the watchdog: the program has not awaited anything for too long."""
        self._note("error", f"the program blocks its loop: await something\n{stack}")

    def _hear(self, running: RunningProgram) -> None:
        """Take what the program has sent since the last time, and its end after that."""
        if running is not self._running or self._storing is not None or self.ended:
            return
        if self._is_away:
            return
        while (message := running.take()) is not None:
            if not self._is_new(message):
                continue
            if not self._messages.offer(message):
                self._storing = asyncio.create_task(self._store(running, message))
                return
            self._note_sent(message)
        if running.has_outcome:
            self._conclude(running)

    def _is_new(self, message: str) -> bool:
        """Whether clients should receive the message: not if the program repeats it after a
        restart, nor after its end."""
        if self._abandoned is not None:
            return False
        try:
            return self._restarts is None or self._restarts.is_new(message)
        except QuireError as exc:
            self._give_up(exc)
            return False

    def _note_sent(self, message: str) -> None:
        if self._restarts is not None:
            self._restarts.note_sent(message)

    async def _store(self, running: RunningProgram, message: str) -> None:
        """Add ``message`` to the log at the pace of the clients, then continue."""
        await self._messages.put(message)
        self._note_sent(message)
        self._storing = None
        self._hear(running)

    def _conclude(self, running: RunningProgram) -> None:
        if self._departure is not None:
            self._departure.end(has_stopped=False)
        try:
            self._result = running.outcome()
            if self._abandoned is None:
                self._note("info", "finished")
        except QuireError as exc:
            said = self._abandoned or exc
            self._note("error", f"{said.code}: {said.message}")
        for error in running.unobserved_failures:
            self._note(
                "warning", f"an exception that was never awaited: {error.code}: {error.message}"
            )
        for task in running.leaked_tasks:
            self._note("warning", f"a task was still running at the end: {task}")
        if self._restarts is not None:
            self._restarts.end()
        self._restarts = (
            None  # the handle is kept for a while; the record of the program's answers is not
        )
        self._start = None
        self._ended_s = time.time()
        self._duration_s = time.monotonic() - self._started_at
        self._messages.close()
        self._ended.set()
        self.num_bytes = self._kept_bytes()
        self._table.ended(self, self.num_bytes)
        for callback in self._callbacks:
            callback()

    def _kept_bytes(self) -> int:
        return (
            self._messages.num_bytes
            + result_bytes(self._result)
            + sum(map(len, self._launch.args))
            + sum(map(len, self._launch.named.values()))
            + sum(line.num_bytes for line in self._log)
        )

    def _print_soon(self, running: RunningProgram, *line: Any) -> None:
        """From any thread."""
        self._table.soon(partial(self._printed, running, *line))

    def _printed(
        self, running: RunningProgram, level: str, text: str, fields: Mapping[str, Any]
    ) -> None:
        """A log entry or output of the program. Only the output of a sandboxed program can be
        attributed to it."""
        if running is not self._running:
            return  # from an earlier incarnation
        for line in text.splitlines() or [""]:
            if self._restarts is not None and self._restarts.prints_again():
                continue
            self._note(LOG_LEVELS.get(level, "info"), line, fields)

    def _note(self, level: LogLevel, text: str, fields: Mapping[str, Any] | None = None) -> None:
        if fields and (problem := problem_with(fields)) is not None:
            fields = {"not shown": problem}
        self._log.append(ProgramLogLine(time.time(), level, text, fields or {}))
