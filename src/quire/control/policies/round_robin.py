"""Round robin over programs: turns of some tokens; the program that was served longest ago goes
first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.ids import ProgramId
from quire.core.policy import ReadyCommand

TURN_TOKENS = 256
"""A turn's length in tokens. A decode that makes way must send its whole history again to go on."""


@dataclass(slots=True)
class _Place:
    """A command's place: in ``turn``, behind all that were served before the service number
    ``last``."""

    turn: int
    last: int
    num_tokens: int = 0


class RoundRobin:
    """A command's level is its turn. A program's commands take successive turns, so a program with
    many gets no more than one with a single command. A new command joins the next turn, behind
    those that are in it already."""

    def __init__(self, turn_tokens: int = TURN_TOKENS) -> None:
        self._turn_tokens = turn_tokens
        self._turn = 0
        self._num_services = 0
        self._next_turn: dict[ProgramId, int] = {}
        self._places: dict[ReadyCommand, _Place] = {}

    @property
    def name(self) -> str:
        return "round_robin"

    @property
    def keeps_state(self) -> bool:
        return True

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        place = self._places[command]
        return (place.turn, place.last)

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None:
        turn = self._take_turn(command.program)
        self._num_services += 1
        self._places[command] = _Place(turn, self._num_services)

    def _take_turn(self, program: ProgramId) -> int:
        turn = max(self._turn + 1, self._next_turn.get(program, 0))
        self._next_turn[program] = turn + 1
        return turn

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None:
        place = self._places[command]
        self._turn = max(self._turn, place.turn)
        self._num_services += 1
        place.last = self._num_services
        place.num_tokens += num_tokens
        if place.num_tokens >= self._turn_tokens:
            place.num_tokens = 0
            place.turn = self._take_turn(command.program)

    def on_ended(self, command: ReadyCommand, now_s: float) -> None:
        del self._places[command]

    def on_program_ended(self, program: ProgramId, now_s: float) -> None:
        self._next_turn.pop(program, None)

    def on_capacity(self, num_sequences: int) -> None:
        pass

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        return ()
