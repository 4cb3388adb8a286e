"""Programs on an engine of ``slots`` places and steps of one unit, ordered by a policy alone.

What runs is chosen anew at each step: the first ``slots`` calls by the policy's key. At a step's
end, calls that were served are told to the policy first, then those that end, then those that
arrive, each in the order of the programs' names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quire.core.ids import ProgramId
from quire.core.policy import Policy, ReadyCommand, ServiceFigures
from quire.testing.conformance.policy import ready

Call = int | tuple[int, Sequence[int]]
"""Units of a call that begins when the one before it has ended; or units, and the numbers of the
calls that have to end first."""


@dataclass
class Gantt:
    """``rows``: which program's call ran in each slot, by step. ``ended``: when each program did.
    ``waited``: units in which it had a call that did not run, for each such call."""

    rows: list[list[str]] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    waited: dict[str, int] = field(default_factory=dict)

    @property
    def total_waited(self) -> int:
        return sum(self.waited.values())


@dataclass(eq=False)
class _Live:
    program: _Program
    number: int
    command: ReadyCommand
    left: int


class _Program:
    def __init__(self, name: str, number: int, calls: Sequence[Call]) -> None:
        self.name = name
        self.id = ProgramId(number)
        self.figures = ServiceFigures()
        self.calls: list[tuple[int, Sequence[int]]] = []
        for index, call in enumerate(calls):
            chain = [index - 1] if index else []
            self.calls.append((call, chain) if isinstance(call, int) else call)
        self.begun: set[int] = set()
        self.ended: set[int] = set()

    def take_ready(self) -> list[int]:
        """Calls whose predecessors have ended, in order; they have begun from now on."""
        found = [
            number
            for number, (_, after) in enumerate(self.calls)
            if number not in self.begun and self.ended.issuperset(after)
        ]
        self.begun.update(found)
        return found

    @property
    def is_over(self) -> bool:
        return len(self.ended) == len(self.calls)


def run(policy: Policy, programs: Mapping[str, Sequence[Call]], slots: int) -> Gantt:
    """All ``programs`` arrive at time 0."""
    made = [_Program(name, number, programs[name]) for number, name in enumerate(sorted(programs))]
    gantt = Gantt(waited=dict.fromkeys(programs, 0))
    live: list[_Live] = []
    num_issued = 0

    def arrive(program: _Program, now: int) -> None:
        nonlocal num_issued
        for number in program.take_ready():
            num_issued += 1
            command = ready(
                num_issued,
                program=program.id,
                arrival_s=float(now),
                family_figures=program.figures,
                program_figures=program.figures,
            )
            command.path_tokens = program.figures.path_tokens
            policy.on_arrival(command, now)
            live.append(_Live(program, number, command, program.calls[number][0]))

    for program in made:
        arrive(program, 0)
    now = 0
    while live:
        policy.on_time(now)
        chosen = sorted(live, key=lambda one: policy.key(one.command))[:slots]
        gantt.rows.append([one.program.name for one in chosen])
        now += 1
        for one in live:
            if one not in chosen:
                gantt.waited[one.program.name] += 1
                one.program.figures.waiting_s += 1
        chosen.sort(key=lambda one: one.program.id)
        for one in chosen:
            _serve(policy, one, now)
        done = [one for one in chosen if not one.left]
        for one in done:
            _end(policy, one, now)
            live.remove(one)
            if one.program.is_over:
                gantt.ended[one.program.name] = now
                policy.on_program_ended(one.program.id, now)
        for program in dict.fromkeys(one.program for one in done):
            arrive(program, now)
    return gantt


def _serve(policy: Policy, one: _Live, now: int) -> None:
    one.left -= 1
    one.command.ready_s = now
    one.command.service_tokens += 1
    one.command.service_s += 1
    one.program.figures.service_tokens += 1
    one.program.figures.service_s += 1
    policy.on_served(one.command, 1, 1.0, now)


def _end(policy: Policy, one: _Live, now: int) -> None:
    figures, command = one.program.figures, one.command
    figures.path_tokens = max(figures.path_tokens, command.path_tokens + command.service_tokens)
    policy.on_ended(command, now)
    one.program.ended.add(one.number)
