"""The actions of one ``handle`` call, in order.

Owns the list; everything in control that answers or dispatches does so through it.
"""

from __future__ import annotations

from quire.core.actions import Action, Deliver, Dispatch, Fail, Reply, SetTimer, Terminate
from quire.core.batch import Batch
from quire.core.errors import ErrorRecord
from quire.core.ids import CommandId, EngineId, ProgramId


class Outbox:
    """Collects actions; ``take`` hands them over."""

    def __init__(self) -> None:
        self._actions: list[Action] = []

    def deliver(
        self, program: ProgramId, command: CommandId, reply: Reply = None, last: bool = True
    ) -> None:
        self._actions.append(Deliver(program=program, command=command, reply=reply, last=last))

    def fail(self, program: ProgramId, command: CommandId, error: ErrorRecord) -> None:
        self._actions.append(Fail(program=program, command=command, error=error))

    def dispatch(self, engine: EngineId, batch: Batch) -> None:
        self._actions.append(Dispatch(engine=engine, batch=batch))

    def terminate(self, program: ProgramId, error: ErrorRecord) -> None:
        self._actions.append(Terminate(program=program, error=error))

    def set_timer(self, at_s: float) -> None:
        self._actions.append(SetTimer(at_s=at_s))

    def take(self) -> list[Action]:
        taken, self._actions = self._actions, []
        return taken


__all__ = ["Outbox"]
