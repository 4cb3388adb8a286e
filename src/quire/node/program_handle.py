"""One launched program as its clients see it: its record, messages, log and result.

Lives on the edge's loop. Connects the program's incarnations with its clients: ``program_output``
has its messages and log, ``program_input`` the clients' messages, ``program_move`` its move to
another node, ``record_keeping`` what waits for a router. Must not know how a program is executed
(``Runtime`` does) nor what it computes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from quire.core.errors import EngineLost, ErrorRecord, ProgramTerminated, QuireError
from quire.core.ids import ProgramId
from quire.node.handing_over import HandedProgram, Origin
from quire.node.incarnations import Incarnations
from quire.node.loops import call_on, on_loop_of
from quire.node.message_log import MessageReader
from quire.node.program_figures import with_guest
from quire.node.program_input import check_signal, close_input, send
from quire.node.program_move import ProgramMove
from quire.node.program_output import ProgramOutput
from quire.node.program_place import ProgramPlace
from quire.node.program_records import (
    ProgramLaunch,
    ProgramLimits,
    ProgramLogLine,
    ProgramRecord,
    kept_bytes,
)
from quire.node.record_keeping import RecordKeeping
from quire.node.restarts import Restarts
from quire.node.told_record import ToldRecord
from quire.programs.runtime.replay_log import MAX_RESTARTS, cannot_resume
from quire.programs.runtime.running import RunningProgram
from quire.programs.services.children import ChildState


class ProgramHandle:
    """One launched program. Every method belongs to the edge's loop."""

    def __init__(self, id: str, launch: ProgramLaunch, name: str, limits: ProgramLimits) -> None:
        self.id = id
        self.tenant = launch.tenant
        self._launch = launch
        self.name = name
        self._keeping = RecordKeeping()
        self._output = ProgramOutput(
            limits,
            on_stored=self._hear,
            on_failure=self._give_up,
            keeping=self._keeping.of_message,
        )
        self._move = ProgramMove(id, limits.handed_over_s, on_unheard=self._end_with)
        self._incarnations = Incarnations(self._follow)
        self.num_bytes = 0
        """Bytes that the handle keeps after the end: messages, result, arguments and log."""
        self._result: Any = None
        self._ended = asyncio.Event()
        self._abandoned: QuireError | None = None
        self._is_wanted = True
        """False once a client or the node has asked the program to end."""
        self._callbacks: list[Callable[[], None]] = []
        self._restarts: Restarts | None = None
        self._origin: Origin | None = None
        self._table: ProgramPlace

    def begin(
        self,
        start: Callable[[], RunningProgram],
        table: ProgramPlace,
        restarts: Restarts | None,
        origin: Origin | None = None,
        above: ProgramHandle | None = None,
    ) -> None:
        """Start the program. ``start`` gives it to its runtime, now and at each restart. ``above``:
        the program that launches it."""
        self._table, self._restarts, self._origin = table, restarts, origin
        if restarts is not None:
            loop = asyncio.get_running_loop()
            restarts.log.on_loss = lambda error: call_on(loop, self._begin_again, error)
            restarts.log.keep = lambda: on_loop_of(loop, self._keeping.kept)
        self._incarnations.begin(start, may_restart=restarts is not None)
        if origin is not None:
            keeping = None if above is None or above._restarts is None else above._keeping
            told = ToldRecord(
                self.id, self.name, self._launch, origin, restarts, is_alone=keeping is None
            )
            self._keeping.begin(table.records(self.tenant), told, keeping)
        num_args = len(self._launch.args) + len(self._launch.named)
        self._output.note("info", f"launched with {num_args} argument{'s' * (num_args != 1)}")

    @property
    def _running(self) -> RunningProgram:
        return self._incarnations.present

    def _follow(self, running: RunningProgram) -> None:
        running.listen_log(partial(self._print_soon, running))
        running.follow(partial(self._table.soon, partial(self._hear, running)))

    def _begin_again(self, error: ErrorRecord, *, was_away: bool = False) -> None:
        """Start the next incarnation, or end the program: its pages in the engine are lost."""
        old, restarts = self._running, self._restarts
        if self._move.has_begun:
            self._move.stopped()
            old.cancel("it moves to another node")
            return
        is_over = self.is_over or (old.state.ended and not was_away)
        if restarts is None or is_over:
            old.cancel("it ends, and its engine was lost")
            return
        if restarts.is_full or restarts.log.num_restarts >= MAX_RESTARTS:
            why = "too much was said" if restarts.is_full else f"the {MAX_RESTARTS + 1}th time"
            self._end_with(cannot_resume(f"{why}; {error.message}"))
            return
        self._output.note("warning", f"{error.code}: {error.message}; the program is resumed")
        self._output.drop_waiting()
        old.cancel("it begins again")
        try:
            before = self._incarnations.begin_next()
        except QuireError as exc:
            self._end_with(exc)
            return
        self._table.renamed(self, before)
        restarts.begin_again(self._running)

    @property
    def children(self) -> ChildState:
        """The children of a restartable program that has not ended; empty for any other."""
        return ChildState() if self._restarts is None else self._restarts.child_state

    def check_movable(self, *, is_alone: bool = True) -> None:
        """Raise ``InvalidArgument``, with the reason, if the program cannot move to another node.
        ``is_alone``: its parent does not move with it."""
        self._move.check(
            self._launch, self._origin, self._restarts, is_over=self.is_over, is_alone=is_alone
        )

    async def hand_over(self, *, is_alone: bool = True) -> HandedProgram:
        """Stop the program here, without its children, so that another node can continue it;
        ``leave`` or ``stay`` follows.

        Raises:
            InvalidArgument: it cannot move, or has ended; the message says why.
        """
        self.check_movable(is_alone=is_alone)
        assert self._origin is not None
        assert self._restarts is not None
        handed = await self._move.begin(self.name, self._launch, self._origin, self._restarts)
        self._output.drop_waiting()
        return handed

    def go_on(self) -> None:
        """Replay the record of the program, which has come from another node."""
        assert self._restarts is not None
        self._output.note("info", "it goes on from another node")
        self._restarts.begin_again(self._running)

    def stay(self) -> None:
        """Start the program again here: no other node has taken it. Idempotent."""
        if self._move.is_away:
            self._move.come_back()
            lost = EngineLost("no other node has taken the program")
            self._begin_again(lost.record(), was_away=True)
            self._hear(self._running)  # the end of a program that was cancelled meanwhile

    def leave(self) -> None:
        """End the program here: another node has taken it. Its clients get ``EngineLost``, and its
        record is forgotten. Idempotent."""
        if not self._move.is_away or self.ended or self._restarts is None:
            return
        self._abandoned = self._move.leave()
        self._has_gone()

    def leave_behind(self) -> None:
        """Like ``leave``, for a program that still runs here or has ended: this node was taken for
        lost, and another one continues the program. Idempotent."""
        if self.ended and not self.has_left:
            self._move.leave()
            self._table.left(self)
        if self.ended or self._restarts is None:
            return
        self._abandoned = self._move.leave()
        if not self._running.state.ended:
            self._running.cancel(self._abandoned.message)
        self._output.stop()
        self._has_gone()

    def _has_gone(self) -> None:
        assert self._restarts is not None
        self._restarts.end()
        self._output.messages.close()
        self._ended.set()
        self._keeping.end(may_be_lost=True)
        self._table.left(self)

    @property
    def has_left(self) -> bool:
        return self._move.has_left

    @property
    def told(self) -> ToldRecord | None:
        """The program's record, as it is sent to a router; None: the program has ended."""
        return self._keeping.told

    @property
    def is_over(self) -> bool:
        """Whether the program has ended, or was asked to end."""
        return self.ended or not self._is_wanted or self._abandoned is not None

    def _give_up(self, error: QuireError) -> None:
        """End the program with ``error``, whatever its last incarnation returns."""
        self._abandoned = self._abandoned or error
        if not self._running.state.ended:
            self._running.cancel(error.message)
        self._output.stop()

    def _end_with(self, error: QuireError) -> None:
        """Like ``_give_up``; also conclude a program that has already stopped."""
        self._give_up(error)
        self._hear(self._running)

    @property
    def program(self) -> ProgramId:
        return self._running.id

    @property
    def incarnations(self) -> list[ProgramId]:
        """Every number that the program has had."""
        return self._incarnations.numbers

    @property
    def ended(self) -> bool:
        """Whether the program has ended and its last message is in the log."""
        return self._ended.is_set()

    def record(self) -> ProgramRecord:
        error, incarnations = self._abandoned or self._running.error, self._incarnations
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
            started_s=incarnations.started_s,
            ended_s=incarnations.ended_s,
            result=self._result,
            error=None if error is None else error.record(),
            num_messages=self._output.messages.num_messages,
            num_dropped_messages=self._output.messages.num_dropped,
            seed=self._launch.seed,
            named=self._launch.named,
            duration_s=incarnations.duration_s,
            used=with_guest(self._table.used(self), incarnations.spent),
            form=self._launch.form,
        )

    def send(self, message: str) -> Awaitable[None]:
        """Send a message to the program, which has it once this has returned; awaiting the result
        waits while the program has too many unread messages.

        Raises:
            MailboxFull: the program reads no messages.
            MailboxClosed: it has ended, or its input was closed.
        """
        self._move.check_here()
        return send(message, self._running, self._restarts)

    def take_frame(self, connection: str) -> None:
        """Count a frame of the connection to which a router has given this name; the caller acts on
        the frame in the same turn."""
        if self._restarts is not None:
            self._restarts.take_frame(connection)

    def num_frames(self, connection: str) -> int | None:
        """How many frames of a connection were taken, at this node or an earlier one; None: the
        program is not restartable, or has ended."""
        return None if self._restarts is None else self._restarts.frames.get(connection, 0)

    def attach(self, after: int = 0) -> MessageReader:
        """A reader of the program's messages with a sequence number above ``after``; any number of
        clients may have one. Close it when done: a reader that is neither read nor closed slows the
        program down."""
        return self._output.messages.attach(after)

    def messages_after(self, number: int) -> list[str]:
        """Return the messages with a sequence number above ``number``, as far as they are kept."""
        return self._output.messages.after(number)

    def signal(self, name: str, message: str | None = None) -> None:
        """Send the signal ``name``: ``message`` (with its text), ``end_of_input`` or ``cancel``.

        Raises:
            InvalidArgument: another name, or a text is missing or not expected.
            MailboxFull, MailboxClosed: see ``send``.
        """
        check_signal(name, message)
        self._move.check_here()
        self._output.note("info", f"signal {name}")
        if message is not None:
            send(message, self._running, self._restarts)
        elif name == "end_of_input":
            close_input(self._running, self._restarts)
        else:
            self._is_wanted = False
            self._running.cancel("cancelled by a signal of its client")

    def terminate(self, reason: str = "cancelled by its owner") -> None:
        """Cancel the program, in any state; ``result`` waits for its end. Idempotent."""
        self._is_wanted = False
        if not self._running.state.ended:
            self._output.note("warning", f"cancel: {reason}")
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

    async def kept(self) -> None:
        """Wait until a router has the program's record up to now, so that it survives the loss of
        this node; return at once if none keeps it."""
        await self._keeping.kept()

    async def wait_here(self) -> None:
        """Wait while the program is being moved to another node; for ever if it has left."""
        await self._move.wait_here()

    async def wait_stopped(self) -> None:
        """Wait until its present incarnation runs no code any more."""
        with suppress(QuireError):
            await self._running.result()

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
        return self._output.lines()

    async def close(self) -> None:
        """Release the waiters, whatever state this program is in: the node has stopped its
        programs."""
        self._output.messages.close()
        if self._move.is_away:
            self.leave()
        elif self._running.state.ended:
            await self._ended.wait()
        elif not self.ended:
            self._output.drop_waiting()
            self._abandoned = ProgramTerminated(
                f"program {self.name!r} blocked its loop while the node stopped and was left behind"
            )
            self._output.note("error", self._abandoned.message)
            self._ended.set()

    def note_blocked(self, stack: str) -> None:
        """Log that the program has not awaited anything for too long; called for the watchdog."""
        self._output.note("error", f"the program blocks its loop: await something\n{stack}")

    def _hear(self, running: RunningProgram) -> None:
        """Take what the program has sent since the last time, and its end after that."""
        if running is not self._running or self.ended or self._move.is_away:
            return
        if not self._output.take(running, self._restarts) or not running.has_outcome:
            return
        keep = None if self.is_over else self._keeping.of_end(running)
        if keep is None:
            self._conclude(running)
        else:
            self._output.store_end(running, keep)

    def _conclude(self, running: RunningProgram) -> None:
        self._move.ended()
        self._keeping.end(may_be_lost=self.is_over)
        try:
            self._result = running.outcome()
            if self._abandoned is None:
                self._output.note("info", "finished")
        except QuireError as exc:
            said = self._abandoned or exc
            self._output.note("error", f"{said.code}: {said.message}")
        self._output.note_left(running)
        if self._restarts is not None:
            self._restarts.end()
        self._restarts = None  # the handle is kept for a while, the program's record is not
        self._incarnations.end()
        self._output.messages.close()
        self._ended.set()
        self.num_bytes = self._output.num_bytes + kept_bytes(self._launch, self._result)
        self._table.ended(self, self.num_bytes)
        for callback in self._callbacks:
            callback()

    def _print_soon(self, running: RunningProgram, *line: Any) -> None:
        """Pass on a line of log, from any thread."""
        self._table.soon(partial(self._printed, running, *line))

    def _printed(
        self, running: RunningProgram, level: str, text: str, fields: Mapping[str, Any]
    ) -> None:
        """Take a log entry or output of the program. Only the output of a sandboxed program can be
        attributed to it."""
        if running is self._running:  # not an earlier incarnation
            self._output.printed(level, text, fields, self._restarts)
