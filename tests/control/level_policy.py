"""A policy with queues, quanta, demotion and promotion, as the literature has them: what the
protocol must be able to say. For tests alone.

``MultiLevel`` with ``is_by_program`` off is a multi-level feedback queue over calls. With it, a
call begins in the queue of what its program was served before (Autellix, algorithm 1): the table is
brought up to date when a call ends, and read when one arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.ids import CommandId, ProgramId
from quire.core.interfaces import ReadyCommand

_Key = tuple[ProgramId, CommandId]


@dataclass(slots=True)
class _Call:
    command: ReadyCommand
    level: int
    order: int
    quantum_left: float
    service_before: int
    waiting_since_s: float
    served_s: float = 0.0


class MultiLevel:
    """``quanta``: tokens that a call may get in each queue but the last. ``beta``: one that has
    waited so many times of what it was served goes to the first queue's end."""

    def __init__(
        self, quanta: Sequence[int] = (16, 64), beta: float = 4.0, *, is_by_program: bool = True
    ) -> None:
        self._quanta = tuple(quanta)
        self._beta = beta
        self._is_by_program = is_by_program
        self._served: dict[ProgramId, int] = {}
        self._calls: dict[_Key, _Call] = {}
        self._num_moves = 0

    @property
    def name(self) -> str:
        return "multi_level"

    @property
    def keeps_state(self) -> bool:
        return True

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        call = self._calls[command.program, command.command]
        return (call.level, call.order)

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None:
        served = self._served.get(command.program, 0) if self._is_by_program else 0
        call = _Call(command, 0, 0, 0.0, served, now_s)
        self._calls[command.program, command.command] = call
        self._enter(call, self._level_of(served))

    def _level_of(self, served: int) -> int:
        for level, quantum in enumerate(self._quanta):
            if served < quantum:
                return level
            served -= quantum
        return len(self._quanta)

    def _enter(self, call: _Call, level: int) -> None:
        """At the end of the queue."""
        self._num_moves += 1
        call.level, call.order = level, self._num_moves
        call.quantum_left = self._quanta[level] if level < len(self._quanta) else float("inf")

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None:
        call = self._calls[command.program, command.command]
        call.served_s += service_s
        call.waiting_since_s = now_s
        call.quantum_left -= num_tokens
        if call.quantum_left <= 0:
            self._enter(call, call.level + 1)

    def on_ended(self, command: ReadyCommand, now_s: float) -> None:
        call = self._calls.pop((command.program, command.command))
        served = call.service_before + command.service_tokens
        self._served[command.program] = max(self._served.get(command.program, 0), served)

    def on_program_ended(self, program: ProgramId, now_s: float) -> None:
        self._served.pop(program, None)

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        promoted = []
        for call in self._calls.values():
            waited_s = now_s - call.waiting_since_s
            if call.level and call.served_s and waited_s >= self._beta * call.served_s:
                call.served_s, call.waiting_since_s = 0.0, now_s
                self._enter(call, 0)
                promoted.append(call.command)
        return promoted
