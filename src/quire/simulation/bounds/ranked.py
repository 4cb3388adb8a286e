"""What bounds have in common: a command's rank is its program's, kept until control reads it
again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from quire.core.ids import CommandId, ProgramId
from quire.core.policy import ReadyCommand
from quire.simulation.work import Work, WorkTable


class RankedByWork:
    """A command's level is the result of ``rank`` for its program's work when the program was
    served last; within a level the first to come runs first. Programs that were served are ranked
    again when control reports the time, with all of their commands."""

    def __init__(self, works: WorkTable) -> None:
        self._works = works
        self._live: dict[ProgramId, dict[CommandId, ReadyCommand]] = {}
        self._ranks: dict[tuple[ProgramId, CommandId], float] = {}
        self._served: dict[ProgramId, None] = {}

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def rank(self, work: Work) -> float:
        """Smaller runs first."""

    @property
    def keeps_state(self) -> bool:
        return True

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        rank = self._ranks[command.program, command.command]
        return (rank, command.arrival_s, command.program, command.command)

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None:
        self._live.setdefault(command.program, {})[command.command] = command
        work = self._works.of(command.program)
        rank = 0.0 if work is None else self.rank(work)
        self._ranks[command.program, command.command] = rank

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None:
        self._served[command.program] = None

    def on_ended(self, command: ReadyCommand, now_s: float) -> None:
        del self._ranks[command.program, command.command]
        live = self._live[command.program]
        del live[command.command]
        if not live:
            del self._live[command.program]

    def on_program_ended(self, program: ProgramId, now_s: float) -> None:
        self._served.pop(program, None)

    def on_capacity(self, num_sequences: int) -> None:
        pass

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        changed = []
        served, self._served = self._served, {}
        for program in served:
            work = self._works.of(program)
            live = self._live.get(program)
            if work is None or live is None:
                continue
            rank = self.rank(work)
            for number, command in live.items():
                if self._ranks[program, number] != rank:
                    self._ranks[program, number] = rank
                    changed.append(command)
        return changed
