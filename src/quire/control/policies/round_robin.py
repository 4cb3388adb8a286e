"""Round robin over programs: whoever was served longest ago runs first."""

from __future__ import annotations

from quire.core.ids import ProgramId
from quire.core.interfaces import ReadyCommand


class RoundRobin:
    """Remembers in which turn each program was served last; a new program goes first."""

    def __init__(self) -> None:
        self._turn = 0
        self._last_turn: dict[ProgramId, int] = {}

    @property
    def name(self) -> str:
        return "round_robin"

    @property
    def counts_service(self) -> bool:
        return True

    def key(self, command: ReadyCommand, now_s: float) -> tuple[float, ...]:
        turn = self._last_turn.get(command.program, 0)
        return (turn, command.arrival_s, command.program, command.queue, command.command)

    def on_served(self, command: ReadyCommand, num_tokens: int, now_s: float) -> None:
        self._turn += 1
        self._last_turn[command.program] = self._turn

    def on_program_ended(self, program: ProgramId) -> None:
        self._last_turn.pop(program, None)


__all__ = ["RoundRobin"]
