"""The life of one launched program at this node: its start, its restarts, its move and its end.

Lives on the edge's loop. Connects the program's incarnations with what is kept of it:
``output`` has its messages and log, ``ending`` its end and who waits for it, ``restarting.move``
its move to another node, ``restarting.record_keeping`` what waits for a router. Must not know how a
program is executed (``Runtime`` does) nor what its clients ask (``handle`` does).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from quire.core.errors import EngineLost, ErrorRecord, ProgramTerminated, QuireError
from quire.node.loops import call_on, on_loop_of
from quire.node.programs.ending import ProgramEnding
from quire.node.programs.incarnations import Incarnations
from quire.node.programs.output import ProgramOutput
from quire.node.programs.place import ProgramPlace
from quire.node.programs.records import ProgramLaunch, ProgramLimits, kept_bytes
from quire.node.programs.restarting.handing_over import HandedProgram, Origin
from quire.node.programs.restarting.move import ProgramMove
from quire.node.programs.restarting.record_keeping import RecordKeeping
from quire.node.programs.restarting.restarts import Restarts
from quire.node.programs.restarting.told_record import ToldRecord
from quire.programs.runtime.replay_log import MAX_RESTARTS, cannot_resume
from quire.programs.runtime.running import ProgramState, RunningProgram
from quire.programs.services.children import ChildState


class ProgramLife:
    """The life of the program ``id``, from ``begin`` to its end here. Every method belongs to the
    edge's loop.

    ``output``, ``end``, ``move``, ``keeping`` and ``incarnations`` are the parts of it that the
    program's handle answers from. ``restarts``: None for a program that is not restartable, and
    after the end.
    """

    def __init__(self, id: str, launch: ProgramLaunch, name: str, limits: ProgramLimits) -> None:
        self._id = id
        self._launch = launch
        self._name = name
        self.keeping = RecordKeeping()
        self.output = ProgramOutput(
            limits,
            on_stored=self._hear,
            on_failure=self._give_up,
            keeping=self.keeping.of_message,
        )
        self.move = ProgramMove(id, limits.handed_over_s, on_unheard=self._end_with)
        self.incarnations = Incarnations(self._follow)
        self.end = ProgramEnding()
        self.num_bytes = 0
        """Bytes that are kept after the end: messages, result, arguments and log."""
        self.restarts: Restarts | None = None
        self._origin: Origin | None = None
        self._is_lost = False
        """Whether the present incarnation is to be followed by another one: whatever it still does,
        and however it ends, is not the program's. Set on the program's loop."""
        self._table: ProgramPlace

    def begin(
        self,
        start: Callable[[], RunningProgram],
        table: ProgramPlace,
        restarts: Restarts | None,
        origin: Origin | None = None,
        above: ProgramLife | None = None,
    ) -> None:
        """Start the program. ``start`` gives it to its runtime, now and at each restart. ``above``:
        the program that launches it."""
        self._table, self.restarts, self._origin = table, restarts, origin
        if restarts is not None:
            loop = asyncio.get_running_loop()
            restarts.log.on_loss = partial(self._lose, loop)
            restarts.log.keep = lambda: on_loop_of(loop, self.keeping.kept)
        self.incarnations.begin(start, may_restart=restarts is not None)
        if origin is not None:
            keeping = None if above is None or above.restarts is None else above.keeping
            told = ToldRecord(
                self._id, self._name, self._launch, origin, restarts, is_alone=keeping is None
            )
            self.keeping.begin(table.records(self._launch.tenant), told, keeping)
        num_args = len(self._launch.args) + len(self._launch.named)
        self.output.note("info", f"launched with {num_args} argument{'s' * (num_args != 1)}")

    @property
    def running(self) -> RunningProgram:
        """The present incarnation; the last one after the end."""
        return self.incarnations.present

    def _follow(self, running: RunningProgram) -> None:
        running.listen_log(partial(self._print_soon, running))
        running.follow(partial(self._table.soon, partial(self._hear, running)))

    @property
    def state(self) -> ProgramState:
        """The program's state for its clients. One that has stopped ends with its last message: it
        runs until then, and so does one whose next incarnation has still to start. One that the
        node has given up is terminated, however its last incarnation has ended."""
        if self.end.has_come and self.end.given_up is not None:
            return ProgramState.TERMINATED
        state = self.running.state
        return ProgramState.RUNNING if state.ended and not self.end.has_come else state

    @property
    def error(self) -> QuireError | None:
        """The error with which the program has ended."""
        return self.end.error(self.running) if self.end.has_come else None

    def _lose(self, loop: asyncio.AbstractEventLoop, error: ErrorRecord) -> None:
        """Start the next incarnation soon on ``loop``; called on the program's loop, before the
        present one has ended. What that one is refused from now on may end it before this loop
        turns."""
        self._is_lost = True
        call_on(loop, self._begin_again, error)

    def _begin_again(self, error: ErrorRecord) -> None:
        """Start the next incarnation, or end the program: its pages in the engine are lost."""
        self._is_lost = False
        old, restarts = self.running, self.restarts
        if self.move.has_begun:
            self.move.stopped()
            old.cancel("it moves to another node")
            return
        if restarts is None or self.end.is_due:
            old.cancel("it ends, and its engine was lost")
            self._hear(old)
            return
        if restarts.is_full or restarts.log.num_restarts >= MAX_RESTARTS:
            why = "too much was said" if restarts.is_full else f"the {MAX_RESTARTS + 1}th time"
            self._end_with(cannot_resume(f"{why}; {error.message}"))
            return
        self.output.note("warning", f"{error.code}: {error.message}; the program is resumed")
        self.output.drop_waiting()
        old.cancel("it begins again")
        try:
            before = self.incarnations.begin_next()
        except QuireError as exc:
            self._end_with(exc)
            return
        self._table.renamed(self._id, before, self.running.id)
        restarts.begin_again(self.running)

    @property
    def children(self) -> ChildState:
        """The children of a restartable program that has not ended; empty for any other."""
        return ChildState() if self.restarts is None else self.restarts.child_state

    def check_movable(self, *, is_alone: bool = True) -> None:
        """Raise ``InvalidArgument``, with the reason, if the program cannot move to another node.
        ``is_alone``: its parent does not move with it."""
        self.move.check(
            self._launch, self._origin, self.restarts, is_over=self.end.is_due, is_alone=is_alone
        )

    async def hand_over(self, *, is_alone: bool = True) -> HandedProgram:
        """Stop the program here, without its children, so that another node can continue it;
        ``leave`` or ``stay`` follows.

        Raises:
            InvalidArgument: it cannot move, or has ended; the message says why.
        """
        self.check_movable(is_alone=is_alone)
        assert self._origin is not None
        assert self.restarts is not None
        handed = await self.move.begin(self._name, self._launch, self._origin, self.restarts)
        self.output.drop_waiting()
        return handed

    def go_on(self) -> None:
        """Replay the record of the program, which has come from another node."""
        assert self.restarts is not None
        self.output.note("info", "it goes on from another node")
        self.restarts.begin_again(self.running)

    def stay(self) -> None:
        """Start the program again here: no other node has taken it. Idempotent."""
        if self.move.is_away:
            self.move.come_back()
            lost = EngineLost("no other node has taken the program")
            self._begin_again(lost.record())

    def leave(self) -> None:
        """End the program here: another node has taken it. Its clients get ``EngineLost``, and its
        record is forgotten. Idempotent."""
        if not self.move.is_away or self.end.has_come or self.restarts is None:
            return
        self.end.given_up = self.move.leave()
        self._has_gone()

    def leave_behind(self) -> None:
        """Like ``leave``, for a program that still runs here or has ended: this node was taken for
        lost, and another one continues the program. Idempotent."""
        if self.end.has_come and not self.move.has_left:
            self.move.leave()
            self._table.left(self._id)
        if self.end.has_come or self.restarts is None:
            return
        self.end.given_up = self.move.leave()
        if not self.running.state.ended:
            self.running.cancel(self.end.given_up.message)
        self.output.stop()
        self._has_gone()

    def _has_gone(self) -> None:
        assert self.restarts is not None
        self.restarts.end()
        self.output.messages.close()
        self.end.come()
        self.keeping.end(may_be_lost=True)
        self._table.left(self._id)

    async def wait_stopped(self) -> None:
        """Wait until its present incarnation runs no code any more."""
        with suppress(QuireError):
            await self.running.result()

    def _give_up(self, error: QuireError) -> None:
        """End the program with ``error``, whatever its last incarnation returns."""
        self.end.give_up(error)
        if not self.running.state.ended:
            self.running.cancel(error.message)
        self.output.stop()

    def _end_with(self, error: QuireError) -> None:
        """Like ``_give_up``; also conclude a program that has already stopped."""
        self._give_up(error)
        self._hear(self.running)

    async def close(self) -> None:
        """Release the waiters, whatever state this program is in: the node has stopped its
        programs."""
        self.output.messages.close()
        if self.move.is_away:
            self.leave()
        elif self.running.state.ended:
            await self.end.wait()
        elif not self.end.has_come:
            self.output.drop_waiting()
            left = ProgramTerminated(
                f"program {self._name!r} blocked its loop while the node stopped and was left "
                "behind"
            )
            self.end.given_up = left
            self.output.note("error", left.message)
            self.end.come()

    def _hear(self, running: RunningProgram) -> None:
        """Take what the program has sent since the last time, and its end after that."""
        if running is not self.running or self.end.has_come:
            return
        if self.move.is_away or self._is_lost:
            return
        if not self.output.take(running, self.restarts) or not running.has_outcome:
            return
        keep = None if self.end.is_due else self.keeping.of_end(running)
        if keep is None:
            self._conclude(running)
        else:
            self.output.store_end(running, keep)

    def _conclude(self, running: RunningProgram) -> None:
        self.move.ended()
        self.keeping.end(may_be_lost=self.end.is_due)
        try:
            self.end.result = running.outcome()
            if self.end.given_up is None:
                self.output.note("info", "finished")
        except QuireError as exc:
            said = self.end.given_up or exc
            self.output.note("error", f"{said.code}: {said.message}")
        self.output.note_left(running)
        if self.restarts is not None:
            self.restarts.end()
        self.restarts = None  # the handle is kept for a while, the program's record is not
        self.incarnations.end()
        self.output.messages.close()
        self.end.come()
        self.num_bytes = self.output.num_bytes + kept_bytes(self._launch, self.end.result)
        self._table.ended(self._id, self.num_bytes)
        self.end.call_back()

    def _print_soon(self, running: RunningProgram, *line: Any) -> None:
        """Pass on a line of log, from any thread."""
        self._table.soon(partial(self._printed, running, *line))

    def _printed(
        self, running: RunningProgram, level: str, text: str, fields: Mapping[str, Any]
    ) -> None:
        """Take a log entry or output of the program. Only the output of a sandboxed program can be
        attributed to it."""
        if running is self.running:  # not an earlier incarnation
            self.output.printed(level, text, fields, self.restarts)
