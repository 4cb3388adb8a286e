"""From issue to end: the order of commands within queues, dependencies between them, failures.

Owns every change of a command's state. ``host_commands`` and the engines' schedulers know what a
command does; they report back through ``finish`` and ``fail``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from quire.control.commands.dependencies import (
    cancelled,
    check_after,
    poisoned,
    watch_dependencies,
)
from quire.control.commands.holdings import Holdings
from quire.control.commands.host_commands import (
    HOST_COMMANDS,
    PASSING,
    HostCommands,
    NoEmbeds,
    NotYet,
)
from quire.control.commands.validation import Validator
from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.engine import ControlledEngine
from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.outbox import Outbox
from quire.control.programs.call_notes import note_call, note_call_end
from quire.control.programs.program import CommandQueue, Entry, Program
from quire.control.programs.service import note_waited
from quire.control.programs.states import CommandState
from quire.control.programs.table import ProcessTable
from quire.control.tracing import Tracer, is_call
from quire.core import commands as c
from quire.core.actions import ReplyValue
from quire.core.errors import (
    ErrorRecord,
    InvalidArgument,
    QueuePoisoned,
    QuireError,
    UnknownHandle,
)
from quire.core.ids import CommandId, EngineId

_QUEUED, _STARTED = CommandState.QUEUED, CommandState.STARTED
_FINISHED, _DONE = CommandState.FINISHED, CommandState.DONE
"""Bound once: Python 3.11 looks up a member of an enum at each use, which costs more than the
use."""


class Flow:
    """Moves commands through their queues. ``engines`` is shared with the controller."""

    def __init__(
        self,
        table: ProcessTable,
        engines: Mapping[EngineId, ControlledEngine],
        holdings: Holdings,
        host: HostCommands,
        outbox: Outbox,
        time: EventTime,
        tracer: Tracer,
    ) -> None:
        self._table = table
        self._engines = engines
        self._holdings = holdings
        self._host = host
        self._outbox = outbox
        self._validator = Validator()
        self._num_ended = 0
        self._doomed: deque[tuple[Entry, CommandId]] = deque()
        """Commands that fail with the one that they come after, until each has."""
        self._is_dooming = False
        self._time = time
        self._tracer = tracer

    # -- issue -----------------------------------------------------------------------------------

    def issue(self, queue: CommandQueue, command: c.Command) -> None:
        """Queue ``command``, or answer it with its failure. The caller then calls ``advance``."""
        program = queue.program
        number = command.id
        if number < 0 or number in program.ended or number in program.entries:
            problem = "is below 0: ids there are control's own" if number < 0 else "was used before"
            error = InvalidArgument(f"command id {number} {problem}: choose a new one")
            self._outbox.fail(program.id, number, error.record())
            return
        entry = Entry(command, queue, self._time.now_s)
        try:
            self._check(entry)
        except QuireError as error:
            self._refuse(entry, error)
            return
        self._holdings.register(entry)
        if command.after:
            watch_dependencies(entry)
        self._table.add_entry(entry, self._time.now_s)
        if is_call(entry):
            note_call(entry)

    def issue_own(
        self, queue: CommandQueue, command: c.Command, on_end: Callable[[Entry], None]
    ) -> None:
        """Queue a command of control's own, which has checked it, and let it go on. ``on_end`` gets
        the ended entry, with its ``error`` or else its ``reply``."""
        entry = Entry(command, queue, self._time.now_s)
        entry.on_end = on_end
        self._holdings.register(entry)
        self._table.add_entry(entry, self._time.now_s)
        if is_call(entry):
            note_call(entry)
        self.advance(queue)

    def _check(self, entry: Entry) -> None:
        queue, command = entry.queue, entry.command
        if queue.placed_on is None:
            models = sorted({engine.model for engine in self._engines.values()})
            raise UnknownHandle(
                f"no engine serves model {queue.model!r}: choose one of {', '.join(models)}"
            )
        engine = self._engines[queue.placed_on]
        if queue.poison is not None and not isinstance(command, c.Synchronize):
            raise poisoned(queue.poison)  # not what follows from it, such as unknown pages
        assert isinstance(engine, EngineState), "no queue of a program is placed on encoders"
        self._validator.check(command, queue, engine.info)
        if command.after:
            check_after(command, queue.program)

    def _refuse(self, entry: Entry, error: QuireError) -> None:
        """Fail the command as it is issued: it never enters the queue."""
        queue, program = entry.queue, entry.program
        program.ended.add(entry.id)
        program.failed.add(entry.id)
        program.last_arrival_s = self._time.now_s
        if isinstance(error, QueuePoisoned):
            self._keep_orphan(entry)
        elif queue.poison is None:
            queue.poison = entry.id
        entry.move(CommandState.FAILED)
        entry.error = error.record()
        self._outbox.fail(program.id, entry.id, entry.error)
        self._tracer.call_ended(entry)

    def _keep_orphan(self, entry: Entry) -> None:
        """Keep a valid dealloc behind a failure until the queue is reset or closed."""
        queue, command = entry.queue, entry.command
        if not isinstance(command, c.DeallocPages | c.DeallocEmbeds):
            return
        engine = self._engines[queue.engine]
        assert isinstance(engine, EngineState)
        try:
            self._validator.check(command, queue, engine.info)
        except QuireError:
            return  # it frees nothing; its answer names the command that failed first
        self._holdings.register(entry)
        self._holdings.keep_orphans(entry)

    # -- progress --------------------------------------------------------------------------------

    def advance(self, queue: CommandQueue) -> Entry | None:
        """Carry out what control can do alone; announce and return what needs the engine next."""
        if queue.placed_on is None:
            return None
        engine = self._engines[queue.placed_on]
        engine.touch()
        engine.ready.discard(queue)
        engine.stalled.pop(queue, None)
        engine.starved.pop(queue, None)
        while (entry := queue.next_entry) is not None and not entry.num_blockers:
            kind = type(entry.command)
            if kind not in HOST_COMMANDS:
                if queue.is_quiet:
                    engine.ready.add(queue)
                return entry
            if kind not in PASSING and not queue.is_quiet:
                return None
            if not self._run_host_command(entry, engine):
                return None
        return None

    def _run_host_command(self, entry: Entry, engine: ControlledEngine) -> bool:
        queue = entry.queue
        try:
            reply = self._host.run(entry, self._time.now_s)
        except NoEmbeds:
            engine.starved[queue] = None
            return False
        except NotYet:
            engine.stalled[queue] = None
            return False
        except QuireError as error:
            self.fail(entry, error.record())
            return True
        note_waited(entry, self._time.now_s)
        entry.reply = reply
        if engine.starved and type(entry.command) is c.AllocEmbeds:
            self._look_again(entry, engine)
        queue.begin(entry, _FINISHED)
        self._retire(queue)
        return True

    def note_lease(self) -> None:
        """Note that a lease is complete or has ended: commands that wait are tried again."""
        self._num_ended += 1

    def note_holder(self, program: Program) -> None:
        """Note that a send holds the pages of ``program`` no longer: if it is idle since before,
        they may make way again."""
        if program.id in self._table.idle:
            self._table.note_holder(program)

    def retry_stalled(self, engine: EngineState) -> None:
        """Try the queues that wait on ``engine`` again, if a command or lease has ended."""
        while engine.stalled and engine.num_ended_before != self._num_ended:
            engine.num_ended_before = self._num_ended
            for queue in list(engine.stalled):
                self.advance(queue)
        self._feed_starved(engine)

    def _feed_starved(self, engine: EngineState) -> None:
        """Let the queues that wait for embeds go on in the order of arrival, if some were given
        back. Thousands may wait, so none is tried while no embeds are free."""
        while engine.starved and engine.num_freed_embeds != engine.embeds.num_freed:
            engine.num_freed_embeds = engine.embeds.num_freed
            for queue in list(engine.starved):
                if not engine.embeds.num_free:
                    break
                self.advance(queue)

    def _look_again(self, entry: Entry, engine: ControlledEngine) -> None:
        """Have the program's other queues tried again after ``entry`` got embeds. A program that
        holds some must not wait for more: another one that holds some could wait for it."""
        for queue in entry.program.queues.values():
            if queue in engine.starved:
                engine.stalled[queue] = None

    def next_for_engine(self, queue: CommandQueue) -> Entry | None:
        """The queue's next command, if it needs the engine and nothing else holds it back."""
        entry = queue.next_entry
        if entry is None or entry.num_blockers or type(entry.command) in HOST_COMMANDS:
            return None
        return entry

    def start(self, entry: Entry) -> None:
        """Note that the scheduler has put (a part of) the queue's next command into a message."""
        if entry.state is _QUEUED:
            entry.queue.begin(entry, _STARTED)
            entry.program.num_running += 1

    # -- ends ------------------------------------------------------------------------------------

    def answer(self, entry: Entry, reply: ReplyValue) -> None:
        """Deliver ``reply`` to ``entry``, the first of its queue, before its end: a message in
        flight carries it."""
        entry.is_answered = True
        self._outbox.deliver(entry.program.id, entry.id, reply)

    def finish(self, entry: Entry, reply: ReplyValue) -> None:
        """Take ``reply`` to ``entry``, which the engine has done, and end it when its turn
        comes."""
        entry.reply = reply
        entry.program.num_running -= 1
        entry.move(_FINISHED)
        self._retire(entry.queue)

    def _retire(self, queue: CommandQueue) -> None:
        """End finished commands from the front: commands of a queue end in order."""
        while queue.num_started and queue.entries[0].state is _FINISHED:
            entry = queue.pop_front()
            if entry.error is not None:
                self._end_failed(entry, entry.error)
                continue
            entry.move(_DONE)
            if entry.on_end is not None:
                entry.on_end(entry)
            elif not entry.is_answered:
                self._outbox.deliver(entry.program.id, entry.id, entry.reply)
            self._settle(entry)
        head = queue.next_entry
        if head is not None and queue.is_quiet:  # until now it stood behind others
            head.ready_s = max(head.ready_s, self._time.now_s)

    def fail(self, entry: Entry, error: ErrorRecord) -> None:
        """End ``entry`` as failed and poison its queue. It is in no message in flight."""
        queue = entry.queue
        behind = list(queue.entries)
        behind = behind[behind.index(entry) + 1 :]
        queue.remove(entry)
        if entry.state is _STARTED:
            entry.program.num_running -= 1
        if queue.poison is None:
            queue.poison = entry.id
        self._end_failed(entry, error)
        for later in behind:
            if not isinstance(later.command, c.Synchronize):
                self._fail_behind(later, poisoned(entry.id).record())
        self._retire(queue)

    def _fail_behind(self, entry: Entry, error: ErrorRecord) -> None:
        if entry.state is _QUEUED:
            entry.queue.remove(entry)
            self._end_failed(entry, error)
        elif entry.error is None:
            entry.error = error

    def _end_failed(
        self, entry: Entry, error: ErrorRecord, state: CommandState = CommandState.FAILED
    ) -> None:
        entry.move(state)
        entry.error = error
        entry.program.failed.add(entry.id)
        self._holdings.undo_allocation(entry)
        if entry.freed:
            self._holdings.keep_orphans(entry)
        self._tell_failure(entry, error)
        self._settle(entry)

    def _tell_failure(self, entry: Entry, error: ErrorRecord) -> None:
        if entry.on_end is not None:
            entry.on_end(entry)
        elif not entry.is_answered:
            untold = entry.run.untold() if isinstance(entry.run, DecodeRun) else None
            if untold is not None:
                self._outbox.deliver(entry.program.id, entry.id, untold, last=False)
            self._outbox.fail(entry.program.id, entry.id, error)

    def end_cancelled(self, entry: Entry, reason: str) -> None:
        """End ``entry`` as cancelled. It is in no message in flight. The queue is not poisoned."""
        if entry.state is _STARTED:
            entry.program.num_running -= 1
        entry.queue.remove(entry)
        self._end_failed(entry, cancelled(entry.id, reason).record(), CommandState.CANCELLED)
        self._retire(entry.queue)

    def cancel(self, entry: Entry, reason: str) -> None:
        """End ``entry`` as cancelled: at once, or after its last message in flight."""
        if entry.num_in_flight:
            entry.is_cancelled = True
        elif entry.state is not _FINISHED:
            self.end_cancelled(entry, reason)

    def cancel_all(self, queue: CommandQueue, reason: str) -> None:
        """Cancel what the queue holds, the last command first, so that none of it starts."""
        for entry in reversed(list(queue.entries)):
            self.cancel(entry, reason)

    def free_orphans(self, queue: CommandQueue) -> None:
        """Let the queue's deallocs that failed or were cancelled take effect now."""
        self._holdings.free(queue.program, queue.orphans)

    def _settle(self, entry: Entry) -> None:
        """Unpin what the ended command named and wake the commands that wait for it."""
        self._num_ended += 1
        if is_call(entry):
            note_call_end(entry, self._time.now_s)
            self._tracer.call_ended(entry)
        if entry.run is not None or entry.rank is not None:
            self._engines[entry.queue.engine].abandon(entry)
        if type(entry.command) is c.ImportPages:
            self._host.far_imports.ended(entry)
        self._holdings.unpin(entry)
        if entry.id in entry.program.entries:
            self._table.end_entry(entry, self._time.now_s)
        if entry.dependents:
            self._wake_dependents(entry)

    def _wake_dependents(self, entry: Entry) -> None:
        for dependent in entry.dependents:
            dependent.num_blockers -= 1
            is_done = entry.state is _DONE
            if not is_done and dependent.state is _QUEUED:
                self._doomed.append((dependent, entry.id))
            elif not dependent.num_blockers:
                dependent.ready_s = self._time.now_s
            engine = self._engines[dependent.queue.engine]
            engine.stalled[dependent.queue] = None
            engine.wake()
        entry.dependents = ()
        if self._doomed and not self._is_dooming:
            self._fail_doomed()

    def _fail_doomed(self) -> None:
        """Fail what comes after a failed command, and what comes after that. One after the other:
        such a chain may be as long as a program's commands."""
        self._is_dooming = True
        while self._doomed:
            dependent, failed = self._doomed.popleft()
            if dependent.state is _QUEUED:  # else it has failed behind another one of its queue
                self.fail(dependent, poisoned(failed).record())
        self._is_dooming = False
