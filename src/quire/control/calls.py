"""The requests of programs: queues, commands on them, encoders.

Owns what each call does. ``flow`` owns the state of commands; ``placement`` and ``moves`` choose
the engine that serves a queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.control.commands.checks import check_new_queue
from quire.control.commands.flow import Flow
from quire.control.commands.holdings import Holdings
from quire.control.encoding import Encoding
from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.moves import ProgramMover
from quire.control.outbox import Outbox
from quire.control.placement.deployments import Deployments
from quire.control.programs.program import CommandQueue, Program
from quire.control.programs.table import ProcessTable
from quire.control.scheduler.engine_scheduler import EngineScheduler
from quire.control.scheduler.order.ranking import Ranking
from quire.core import calls as c
from quire.core import events as e
from quire.core.command_base import CommandBase
from quire.core.commands import Command
from quire.core.errors import (
    ErrorRecord,
    InvalidArgument,
    NeverWithinQuota,
    QuotaExceeded,
    UnknownHandle,
)
from quire.core.ids import EngineId, ProgramId, QueueId
from quire.core.policy import GraphPlace


class CallHandler:
    """Handles ``Called``. ``engines`` and ``schedulers`` are shared with the controller."""

    def __init__(
        self,
        table: ProcessTable,
        engines: Mapping[EngineId, EngineState],
        schedulers: Mapping[EngineId, EngineScheduler],
        deployments: Deployments,
        moves: ProgramMover,
        flow: Flow,
        holdings: Holdings,
        encoding: Encoding,
        ranking: Ranking,
        outbox: Outbox,
        time: EventTime,
    ) -> None:
        self._table = table
        self._engines = engines
        self._schedulers = schedulers
        self._deployments = deployments
        self._moves = moves
        self._flow = flow
        self._holdings = holdings
        self._encoding = encoding
        self._ranking = ranking
        self._outbox = outbox
        self._time = time
        self._num_queues = 0
        self._handlers = self._by_type()

    def _by_type(self) -> Mapping[type[c.CallBase], Callable[[Program, Any], None]]:
        return {
            c.CreateQueue: self._create_queue,
            c.SetQueuePriority: self._set_queue_priority,
            c.SetQueueDepth: self._set_queue_depth,
            c.ResetQueue: self._reset_queue,
            c.CloseQueue: self._close_queue_of,
            c.Issue: self._issue,
            c.Cancel: self._cancel,
            c.AskEncoder: self._encoding.asked,
        }

    def handle(self, event: e.Called) -> None:
        call = event.call
        program = self._table.get(event.program)
        if program is not None:
            self._table.changes.touch(program)
            self._handlers[type(call)](program, call)
        elif isinstance(call, c.Issue):
            self._refuse(event.program, call.commands, _no_queue(event.program, call.queue))
        elif isinstance(call, c.AskEncoder):
            self._refuse(event.program, [call.command], _no_program(event.program))

    def _create_queue(self, program: Program, call: c.CreateQueue) -> None:
        if call.queue < 0 or call.queue in program.queues:
            return
        try:
            check_new_queue(program)
        except (NeverWithinQuota, QuotaExceeded) as error:
            program.refuse_queue(call.queue, error.record())
            return
        program.account.num_queues += 1
        program.threads.begin(call.thread, call.parent_thread, self._time.now_s)
        program.queues[call.queue] = CommandQueue(
            call.queue,
            program,
            call.model,
            call.thread,
            GraphPlace(call.depth),
            call.priority,
            self._num_queues,
        )
        self._num_queues += 1
        program.threads.forget_idle(queue.thread for queue in program.queues.values())

    def open_own_queue(self, beside: CommandQueue, engine: EngineId) -> CommandQueue:
        """Open a queue of control's own on ``engine``, for what ``beside`` waits for. Its id is
        below 0, where programs choose none, and no quota refuses it."""
        program = beside.program
        queue = CommandQueue(
            QueueId(min(0, min(program.queues)) - 1),
            program,
            self._engines[engine].model,
            beside.thread,
            beside.place,
            beside.priority,
            self._num_queues,
        )
        self._num_queues += 1
        queue.placed_on = engine
        program.queues[queue.id] = queue
        program.account.num_queues += 1
        return queue

    def _set_queue_priority(self, program: Program, call: c.SetQueuePriority) -> None:
        queue = _queue_of(program, call.queue)
        if queue is not None:
            queue.priority = call.priority
            for entry in queue.entries:
                self._ranking.note_priority(entry)
            if queue.placed_on is not None:
                engine = self._engines[queue.placed_on]
                engine.ready.note_priority(queue)
                engine.touch()  # it may have waited for spare time

    def _set_queue_depth(self, program: Program, call: c.SetQueueDepth) -> None:
        queue = _queue_of(program, call.queue)
        if queue is not None:
            queue.place = GraphPlace(call.depth, call.invocation, call.remaining_us)

    def _reset_queue(self, program: Program, call: c.ResetQueue) -> None:
        queue = _queue_of(program, call.queue)
        if queue is not None:
            self._flow.cancel_all(queue, "its queue was reset")
            queue.poison = None
            self._flow.free_orphans(queue)
            self._flow.advance(queue)

    def _close_queue_of(self, program: Program, call: c.CloseQueue) -> None:
        queue = _queue_of(program, call.queue)
        if queue is not None:
            self.close_queue(queue, "its queue was closed")
        else:
            program.refused_queues.pop(call.queue, None)

    def close_queue(self, queue: CommandQueue, reason: str) -> None:
        del queue.program.queues[queue.id]
        queue.program.account.num_queues -= 1
        self._flow.cancel_all(queue, reason)
        self._flow.free_orphans(queue)
        self._holdings.free_queue(queue)
        if queue.placed_on is not None:
            engine = self._engines[queue.placed_on]
            self._schedulers[queue.placed_on].anticipation.forget(queue)
            engine.tables.drop_queue(queue.serial, engine.operations)
            self._flow.advance(queue)  # it waits for nothing any more

    # -- commands --------------------------------------------------------------------------------

    def _issue(self, program: Program, call: c.Issue) -> None:
        queue = _queue_of(program, call.queue)
        if queue is None:
            refused = program.refused_queues.get(call.queue)
            self._refuse(program.id, call.commands, refused or _no_queue(program.id, call.queue))
            return
        if queue.placed_on is None:
            self._place(queue, call.commands)
        if queue.placed_on is not None:
            self._moves.follow(queue, call.commands)
            if (error := self._engines[queue.placed_on].given_up) is not None:
                self._refuse(program.id, call.commands, error)
                return
        for command in call.commands:
            self._flow.issue(queue, command)
        self._flow.advance(queue)
        if queue.placed_on is not None:
            self._schedulers[queue.placed_on].anticipation.issued(queue, self._time.now_s)

    def _refuse(
        self, program: ProgramId, commands: Sequence[CommandBase], error: ErrorRecord
    ) -> None:
        for command in commands:
            self._outbox.fail(program, command.id, error)

    def _place(self, queue: CommandQueue, commands: Sequence[Command]) -> None:
        """Choose the queue's engine. A queue of a model without an engine gets none, and its
        commands are refused."""
        engine = self._deployments.choose(queue, commands)
        if engine is not None:
            queue.placed_on = engine.id
            self._outbox.placed(queue.program.id, queue.id, engine.id)

    def _cancel(self, program: Program, call: c.Cancel) -> None:
        entry = program.entries.get(call.command)
        if entry is not None and call.command >= 0:  # below are control's own
            self._flow.cancel(entry, "by its program")
            self._flow.advance(entry.queue)


def _queue_of(program: Program, queue: QueueId) -> CommandQueue | None:
    """Return the queue that ``program`` names; None if it has none, or names one of control's
    (``open_own_queue``)."""
    return program.queues.get(queue) if queue >= 0 else None


def _no_queue(program: ProgramId, queue: QueueId) -> ErrorRecord:
    if queue < 0:
        wrong = f"queue {queue}: ids below 0 are control's own: choose 0 or more"
        return InvalidArgument(wrong).record()
    what = f"queue {queue} of program {program} does not exist: create it first"
    return UnknownHandle(what).record()


def _no_program(program: ProgramId) -> ErrorRecord:
    return UnknownHandle(f"program {program} is not known: it may have ended").record()
