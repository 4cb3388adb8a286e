"""The actions of one ``handle`` call, in order.

Owns the list; every answer and every dispatch of control goes through it.
"""

from __future__ import annotations

from quire.control.programs.program import Program
from quire.core.actions import (
    Action,
    Deliver,
    Dispatch,
    Fail,
    ProgramClosed,
    QueuePlaced,
    ReplyValue,
    SetTimer,
    Terminate,
)
from quire.core.batch import Batch
from quire.core.encoding import EncodeBatch, Encoded
from quire.core.errors import ErrorRecord
from quire.core.ids import CommandId, EngineId, ProgramId, QueueId


class Outbox:
    """Collects actions; ``take`` returns them and starts again.

    ``_done``: consecutive commands of ``_program`` that have ended without a reply. They are
    reported by the next reply of that program, or by an action for the last of them.
    """

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._program = ProgramId(0)
        self._done: list[CommandId] = []

    def deliver(
        self, program: ProgramId, command: CommandId, reply: ReplyValue = None, last: bool = True
    ) -> None:
        if type(reply) is Encoded:  # it goes to its own receiver, which expects no other command
            self._add(Deliver(program=program, command=command, reply=reply, last=last))
            return
        if program != self._program:
            self._tell_done()
            self._program = program
        if reply is None and last:
            self._done.append(command)
        else:
            self._tell(command, reply, last)

    def _tell_done(self) -> None:
        if self._done:
            self._tell(self._done.pop(), None, True)

    def _tell(self, command: CommandId, reply: ReplyValue, last: bool) -> None:
        """Report ``reply`` for ``command``, and that those of ``_done`` are done."""
        done_before: tuple[CommandId, ...] = ()
        if self._done:
            done_before, self._done = tuple(self._done), []
        self._actions.append(
            Deliver(
                program=self._program,
                command=command,
                reply=reply,
                last=last,
                done_before=done_before,
            )
        )

    def fail(self, program: ProgramId, command: CommandId, error: ErrorRecord) -> None:
        self._add(Fail(program=program, command=command, error=error))

    def placed(self, program: ProgramId, queue: QueueId, engine: EngineId) -> None:
        self._add(QueuePlaced(program=program, queue=queue, engine=engine))

    def dispatch(self, engine: EngineId, batch: Batch | EncodeBatch) -> None:
        self._add(Dispatch(engine=engine, batch=batch))

    def terminate(self, program: ProgramId, error: ErrorRecord) -> None:
        self._add(Terminate(program=program, error=error))

    def closed(self, program: Program, reason: str) -> None:
        self._add(
            ProgramClosed(
                program=program.id,
                form=program.form,
                reason=reason,
                num_prefilled_tokens=program.num_prefilled_tokens,
                num_cached_tokens=program.num_cached_tokens,
                num_generated_tokens=program.num_generated_tokens,
                num_encoded_tokens=program.num_encoded_tokens,
                num_preemptions=program.num_preemptions,
                service_s=program.figures.service_s,
                waiting_s=program.figures.waiting_s,
            )
        )

    def set_timer(self, at_s: float) -> None:
        self._add(SetTimer(at_s=at_s))

    def _add(self, action: Action) -> None:
        self._tell_done()
        self._actions.append(action)

    def take(self) -> list[Action]:
        self._tell_done()
        taken, self._actions = self._actions, []
        return taken
