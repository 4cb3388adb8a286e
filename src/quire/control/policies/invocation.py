"""``invocation``: the requests of one step of a program's graph stay together (Ayo's PO)."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.ids import CommandId, ProgramId
from quire.core.policy import ReadyCommand

_Step = tuple[ProgramId, int]


class InvocationsTogether:
    """Invocations are ordered by the arrival of their first request, each with all its requests
    that have arrived. Room that a message has behind the last request of one goes to the next. A
    request without an invocation is an invocation of its own. Nothing that runs is displaced."""

    def __init__(self) -> None:
        self._began_s: dict[_Step, float] = {}
        self._num_of: dict[_Step, int] = {}
        self._first_s: dict[tuple[ProgramId, CommandId], float] = {}

    @property
    def name(self) -> str:
        return "invocation"

    @property
    def keeps_state(self) -> bool:
        return True

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        if not command.invocation:
            own_s = command.arrival_s
            return (0, own_s, command.program, command.command, own_s, command.command)
        first_s = self._first_s[command.program, command.command]
        rest = (command.arrival_s, command.command)
        return (0, first_s, command.program, command.invocation, *rest)

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None:
        if not command.invocation:
            return
        step = (command.program, command.invocation)
        first_s = self._began_s.setdefault(step, command.arrival_s)
        self._num_of[step] = self._num_of.get(step, 0) + 1
        self._first_s[command.program, command.command] = first_s

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None:
        pass

    def on_ended(self, command: ReadyCommand, now_s: float) -> None:
        """Forget the request, and its invocation with the last of its requests."""
        if not command.invocation:
            return
        del self._first_s[command.program, command.command]
        step = (command.program, command.invocation)
        self._num_of[step] -= 1
        if not self._num_of[step]:
            del self._num_of[step], self._began_s[step]

    def on_program_ended(self, program: ProgramId, now_s: float) -> None:
        pass

    def on_capacity(self, num_sequences: int) -> None:
        pass

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        return ()
