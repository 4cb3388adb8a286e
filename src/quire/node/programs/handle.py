"""One launched program as its clients see it: its record, messages, log and result.

Lives on the edge's loop. Owns the answers to clients; ``life`` has the program's life, of
which they are told: its start, restarts, move and end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from quire.core.ids import ProgramId
from quire.node.programs.figures import with_guest
from quire.node.programs.input import check_signal, close_input, send
from quire.node.programs.life import ProgramLife
from quire.node.programs.message_log import MessageReader
from quire.node.programs.place import ProgramPlace
from quire.node.programs.records import (
    ProgramLaunch,
    ProgramLimits,
    ProgramLogLine,
    ProgramRecord,
)
from quire.node.programs.restarting.handing_over import Origin
from quire.node.programs.restarting.restarts import Restarts
from quire.programs.runtime.running import RunningProgram


class ProgramHandle:
    """One launched program. Every method belongs to the edge's loop. ``life``: for the node, and
    for who moves the program to another one."""

    def __init__(self, id: str, launch: ProgramLaunch, name: str, limits: ProgramLimits) -> None:
        self.id = id
        self.tenant = launch.tenant
        self._launch = launch
        self.name = name
        self.life = ProgramLife(id, launch, name, limits)
        self._table: ProgramPlace

    def begin(
        self,
        start: Callable[[], RunningProgram],
        table: ProgramPlace,
        restarts: Restarts | None,
        origin: Origin | None = None,
        above: ProgramHandle | None = None,
    ) -> None:
        """Start the program; see ``ProgramLife.begin``. ``above``: the program that launches it."""
        self._table = table
        self.life.begin(start, table, restarts, origin, None if above is None else above.life)

    @property
    def program(self) -> ProgramId:
        return self.life.running.id

    @property
    def incarnations(self) -> list[ProgramId]:
        """Every number that the program has had."""
        return self.life.incarnations.numbers

    @property
    def ended(self) -> bool:
        """Whether the program has ended and its last message is in the log."""
        return self.life.end.has_come

    @property
    def has_left(self) -> bool:
        """Whether another node has taken the program."""
        return self.life.move.has_left

    def record(self) -> ProgramRecord:
        error, incarnations = self.life.error, self.life.incarnations
        used = self._table.used(incarnations.numbers, ended=self.ended)
        return ProgramRecord(
            id=self.id,
            program=self.life.running.id,
            tenant=self.tenant,
            name=self.name,
            args=self._launch.args,
            client_id=self._launch.client_id,
            parent=self._launch.parent,
            parent_thread=self._launch.parent_thread,
            priority=self._launch.priority,
            state=self.life.state,
            started_s=incarnations.started_s,
            ended_s=incarnations.ended_s,
            result=self.life.end.result,
            error=None if error is None else error.record(),
            num_messages=self.life.output.messages.num_messages,
            num_dropped_messages=self.life.output.messages.num_dropped,
            seed=self._launch.seed,
            named=self._launch.named,
            duration_s=incarnations.duration_s,
            used=with_guest(used, incarnations.spent),
            form=self._launch.form,
        )

    def send(self, message: str) -> Awaitable[None]:
        """Send a message to the program, which has it once this has returned; awaiting the result
        waits while the program has too many unread messages.

        Raises:
            MailboxFull: the program reads no messages.
            MailboxClosed: it has ended, or its input was closed.
        """
        self.life.move.check_here()
        return send(message, self.life.running, self.life.restarts)

    def take_frame(self, connection: str) -> None:
        """Count a frame of the connection to which a router has given this name; the caller acts on
        the frame in the same turn."""
        if self.life.restarts is not None:
            self.life.restarts.take_frame(connection)

    def num_frames(self, connection: str) -> int | None:
        """How many frames of a connection were taken, at this node or an earlier one; None: the
        program is not restartable, or has ended."""
        return None if self.life.restarts is None else self.life.restarts.frames.get(connection, 0)

    def attach(self, after: int = 0) -> MessageReader:
        """A reader of the program's messages with a sequence number above ``after``; any number of
        clients may have one. Close it when done: a reader that is neither read nor closed slows the
        program down."""
        return self.life.output.messages.attach(after)

    def messages_after(self, number: int) -> list[str]:
        """Return the messages with a sequence number above ``number``, as far as they are kept."""
        return self.life.output.messages.after(number)

    def signal(self, name: str, message: str | None = None) -> None:
        """Send the signal ``name``: ``message`` (with its text), ``end_of_input`` or ``cancel``.

        Raises:
            InvalidArgument: another name, or a text is missing or not expected.
            MailboxFull, MailboxClosed: see ``send``.
        """
        check_signal(name, message)
        self.life.move.check_here()
        self.life.output.note("info", f"signal {name}")
        if message is not None:
            send(message, self.life.running, self.life.restarts)
        elif name == "end_of_input":
            close_input(self.life.running, self.life.restarts)
        else:
            self.life.end.ask()
            self.life.running.cancel("cancelled by a signal of its client")

    def terminate(self, reason: str = "cancelled by its owner") -> None:
        """Cancel the program, in any state; ``result`` waits for its end. Idempotent."""
        self.life.end.ask()
        if not self.life.running.state.ended:
            self.life.output.note("warning", f"cancel: {reason}")
            self.life.running.cancel(reason)

    async def result(self) -> Any:
        """The program's result, once everything that it held is free.

        Raises:
            ProgramFailed, ProgramCancelled, ProgramTerminated, or the node's own error.
        """
        await self.life.end.wait()
        if (error := self.life.end.error(self.life.running)) is not None:
            raise error
        return self.life.end.result

    async def kept(self) -> None:
        """Wait until a router has the program's record up to now, so that it survives the loss of
        this node; return at once if none keeps it."""
        await self.life.keeping.kept()

    async def wait_here(self) -> None:
        """Wait while the program is being moved to another node; for ever if it has left."""
        await self.life.move.wait_here()

    async def wait_ended(self) -> None:
        await self.life.end.wait()

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the program has ended, or soon if it already has."""
        self.life.end.when_come(callback)

    def logs(self) -> Sequence[ProgramLogLine]:
        """The program's log, oldest entry first."""
        return self.life.output.lines()

    def note_blocked(self, stack: str) -> None:
        """Log that the program has not awaited anything for too long; called for the watchdog."""
        self.life.output.note("error", f"the program blocks its loop: await something\n{stack}")
