"""One sandboxed program on the node's side: its port, its mailbox, its end.

Owns the ``RunningProgram`` that its clients hold. Calls of the guest go to the port under this
program's identity; replies and messages go to the guest. Belongs to the link's loop, except
``request_cancel``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

from quire.core.actions import ReplyValue
from quire.core.calls import AskService, DropAnswer, Issue
from quire.core.errors import (
    ErrorRecord,
    InvalidArgument,
    MailboxFull,
    ProgramCancelled,
    ProgramFailed,
    ProgramTerminated,
    QuireError,
    QuotaExceeded,
    from_record,
)
from quire.core.ids import CommandId
from quire.core.interfaces import ProgramPort
from quire.node.loops import call_on
from quire.node.sandbox import messages as s
from quire.node.sandbox.guest_requests import GuestRequests
from quire.node.sandbox.link import SandboxLink
from quire.programs.runtime.ordered_input import InputOrder
from quire.programs.runtime.replay_port import ReplayPort
from quire.programs.runtime.running import ProgramState, RunningProgram
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.host.service_questions import ServiceQuestions
from quire.programs.services.mailbox import Mailbox, MailboxLimits
from quire.programs.shown_values import problem_with

logger = logging.getLogger(__name__)

_UNREAD = 64
"""Mailbox messages from the client that are sent to the guest before the program has read them."""
LIMITS = MailboxLimits()
"""Limit of a guest's mailbox, on both of its sides."""
_TOLD_TOGETHER = LIMITS.capacity // 2
"""Taken messages are reported to the guest in groups of this size, small enough that it never waits
for a client that reads."""


class SandboxedProgram:
    """The ``ReplySink`` of its program and the ``GuestPeer`` of its link.

    ``soon`` calls back on the link's ``loop``, from any thread. ``grace_s``: how long a cancelled
    program may clean up.
    """

    def __init__(
        self,
        name: str,
        link: SandboxLink,
        loop: asyncio.AbstractEventLoop,
        soon: Callable[[Callable[[], object]], None],
        grace_s: float,
    ) -> None:
        self._name = name
        self.link = link
        self._loop = loop
        self._soon = soon
        self._grace_s = grace_s
        self._grace: asyncio.TimerHandle | None = None
        self._number = 0
        self._cancel_reason: str | None = None
        self._num_untold = 0
        """Messages to its client of which the guest has no report yet that they were taken."""
        self._waits_for_reader = False
        self._num_unread = 0
        self._input_closed = False
        self._starting: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._questions: ServiceQuestions | None = None
        self.inputs: InputOrder | None = None
        """The order of a restartable program's messages."""
        self._requests: GuestRequests | None = None
        """The HTTP requests of a restartable program."""
        self.mailbox = Mailbox(name, LIMITS)
        self.port: ProgramPort
        self.running: RunningProgram

    def record(self, port: ReplayPort) -> None:
        """Have ``port`` record what reaches the program, which is restartable; before it starts."""
        self.inputs = port.inputs
        self._requests = GuestRequests(
            port,
            lambda call: self.link.order_fetch(self._number, call),
            lambda event: self.link.tell(self._number, event),
        )

    # -- life --------------------------------------------------------------------------------------

    def start(self, begin: Callable[[int], None]) -> None:
        """Start the guest when its process is ready; ``begin`` then gets its number."""
        if self.link.is_ready:
            self._begin(begin)
        else:
            self._starting = self._loop.create_task(self._start_later(begin))

    async def _start_later(self, begin: Callable[[int], None]) -> None:
        try:
            await self.link.ready()
        except Exception as exc:
            self._not_started(exc)
            return
        self._begin(begin)

    def _not_started(self, why: Exception) -> None:
        """Conclude a program that its process cannot start, whatever the reason (the disk is full):
        who waits for its end would wait for ever."""
        if self.running.state.ended:
            return
        if not isinstance(why, QuireError):
            logger.error(
                "program %s (%s) cannot be started", self.running.id, self._name, exc_info=why
            )
            why = ProgramTerminated(
                f"program {self._name!r} cannot be started ({type(why).__name__}: {why}): see the "
                "node's log, then launch it again"
            )
        self._conclude(ProgramState.TERMINATED, None, why)

    def _begin(self, begin: Callable[[int], None]) -> None:
        if self.running.state.ended:
            return
        self._number = self.link.add(self)
        self.running.advance(ProgramState.RUNNING)
        try:
            begin(self._number)
        except Exception as exc:
            self._not_started(exc)
            return
        self.mailbox.to_program.listen(self._has_input)
        if self._cancel_reason is not None:
            self._cancel(self._cancel_reason)

    def request_cancel(self, reason: str) -> None:
        """Cancel the program, from any thread."""
        call_on(self._loop, self._cancel, reason)

    def _cancel(self, reason: str) -> None:
        if self.running.state.ended:
            return
        error = ProgramCancelled(f"program {self._name!r}: {reason}")
        if self.running.state is ProgramState.STARTING:
            self._conclude(ProgramState.CANCELLED, None, error)
            return
        self.link.tell(self._number, m.CancelAsked(reason))
        if self._grace is None:
            self._grace = self._loop.call_later(
                self._grace_s, self._stop, ProgramState.CANCELLED, error
            )

    def _stop(self, state: ProgramState, error: QuireError) -> None:
        """End the guest at once."""
        if not self.running.state.ended:
            self.link.stop_guest(self._number, error.record())
            self._conclude(state, None, error)

    def _conclude(self, state: ProgramState, result: object, error: QuireError | None) -> None:
        if self._grace is not None:
            self._grace.cancel()
        self.link.forget(self._number)
        if self._questions is not None:
            self._questions.close()
        if self._requests is not None:
            self._requests.close()
        self.port.close(state.value)
        self.running.advance(state, result=result, error=error)

    # -- from control ------------------------------------------------------------------------------

    def on_reply(self, command: CommandId, reply: ReplyValue, last: bool) -> None:
        self.link.tell(self._number, m.Replied(command, reply, last))

    def on_failure(self, command: CommandId, error: ErrorRecord) -> None:
        self.link.tell(self._number, m.CommandFailed(command, error))

    def on_terminated(self, error: ErrorRecord) -> None:
        self._stop(ProgramState.TERMINATED, from_record(error))

    # -- from the guest ----------------------------------------------------------------------------

    def on_lost(self, error: ErrorRecord) -> None:
        if not self.running.state.ended:
            self._conclude(ProgramState.TERMINATED, None, from_record(error))

    def on_fetched(self, event: m.Fetched | m.FetchFailed) -> None:
        """Take the answer to a request that the node has ordered."""
        if self._requests is not None:
            self._requests.answered(event)

    def on_report(self, report: s.GuestReport) -> None:
        """Carry out a guest's message. Its errors must not reach the link, which serves other
        guests too."""
        try:
            if report.spent is not None:
                self.running.spent.cpu_s = report.spent.cpu_ns / 1e9
                self.running.spent.memory_bytes = report.spent.memory_bytes
            for line in report.log:
                self.running.log(line.level, line.text, line.fields)
            for call in report.calls:
                if self.running.state.ended:
                    return
                self._carry_out(call)
        except Exception as exc:
            logger.exception("a report of program %s (%s) failed", self.running.id, self._name)
            self._stop(
                ProgramState.TERMINATED,
                ProgramTerminated(
                    f"program {self._name!r} said what cannot be taken in: {type(exc).__name__}"
                ),
            )

    def _carry_out(self, call: m.GuestCalls) -> None:
        match call:
            case Issue():  # nearly all
                self.port.post(call)
            case m.Send():
                self._send(call.text)
            case m.Received():
                self._num_unread = max(0, self._num_unread - call.count)
                self._pass_input()
            case AskService():
                self._service_questions().start(call)
            case DropAnswer():
                if self._questions is not None:
                    self._questions.drop(call.number)
            case m.Ended() if self._questions is not None and self._questions.num_unanswered:
                self._ending = self._loop.create_task(self._end_later(call, self._questions))
            case m.Ended():
                self._ended(call)
            case m.Fetch() if self._requests is not None:
                self._requests.start(call)
            case m.Fetch():
                raise InvalidArgument("an HTTP request, which is its host's to make")
            case _:
                self.port.post(call)

    async def _end_later(self, ended: m.Ended, questions: ServiceQuestions) -> None:
        """Conclude after its last service calls, including those put back, are settled: its
        services end with it."""
        await questions.settled(self._grace_s)
        if not self.running.state.ended:
            self._ended(ended)

    def _ended(self, ended: m.Ended) -> None:
        error = None if ended.error is None else from_record(ended.error)
        state = ProgramState(ended.state)
        try:
            result = json.loads(ended.result_json)
        except (ValueError, RecursionError) as exc:  # the second: brackets without end
            error = ProgramFailed(f"program {self._name!r} returned what is not JSON: {exc}")
        else:
            if error is None and (problem := problem_with(result)) is not None:
                error = ProgramFailed(
                    f"program {self._name!r} returned a value that cannot be shown: {problem}"
                )
        if (state is ProgramState.FINISHED) != (error is None):
            state = ProgramState.FAILED
            error = error or ProgramFailed(f"program {self._name!r} failed without saying why")
        self.running.unobserved_failures = tuple(ended.unseen)
        self.running.leaked_tasks = tuple(ended.leaked)
        self._conclude(state, result if error is None else None, error)

    def _service_questions(self) -> ServiceQuestions:
        """Created with the guest's first service call: few guests use services."""
        if self._questions is None:
            self._questions = ServiceQuestions(
                self._name, self.port.ask, lambda event: self.link.tell(self._number, event)
            )
        return self._questions

    # -- messages ----------------------------------------------------------------------------------

    def _send(self, text: str) -> None:
        """Take a message for the client. The guest's runner enforces the limit itself; a guest that
        exceeds it does not run our runner."""
        channel = self.mailbox.to_client
        try:
            channel.send(text)
        except MailboxFull:
            self._stop(
                ProgramState.TERMINATED,
                QuotaExceeded(f"program {self._name!r} sends faster than its client reads"),
            )
            return
        except QuireError as exc:
            self.link.tell(self._number, m.ClientGone(exc.record()))
            return
        self._num_untold += 1
        self._tell_taken()

    def _tell_taken(self) -> None:
        """Report taken messages in groups: before the guest would have to wait, or as soon as there
        are many."""
        channel = self.mailbox.to_client
        num_taken = self._num_untold - len(channel)
        if num_taken >= _TOLD_TOGETHER:
            self._num_untold -= num_taken
            self.link.tell(self._number, m.Taken(num_taken))
        if self._num_untold >= LIMITS.capacity and not self._waits_for_reader:
            self._waits_for_reader = True
            enough = self._num_untold - _TOLD_TOGETHER + 1
            channel.when_fewer(enough, lambda: self._soon(self._reader_goes_on))

    def _reader_goes_on(self) -> None:
        self._waits_for_reader = False
        if not self.running.state.ended:
            self._tell_taken()

    def _has_input(self) -> None:
        """Pass on new input; called from any thread."""
        self._soon(self._pass_input)

    def _pass_input(self) -> None:
        """Send input to the guest, as long as it has fewer than ``_UNREAD`` unread messages."""
        channel = self.mailbox.to_program
        if self.running.state.ended or self._input_closed:
            return
        while (
            self._num_unread < _UNREAD and self._may_come() and (text := channel.take()) is not None
        ):
            self._num_unread += 1
            self._came(m.Message(text))
        if channel.is_over and self._may_come():
            self._input_closed = True
            self._came(m.InputClosed())

    def _may_come(self) -> bool:
        return self.inputs is None or self.inputs.may_come(self._pass_input)

    def _came(self, event: m.Message | m.InputClosed) -> None:
        if self.inputs is not None:
            self.inputs.came()
        self.link.tell(self._number, event)
