"""Programs on an engine of ``slots`` places and steps of one unit, ordered by a policy alone.

What runs is chosen anew at each step: the first ``slots`` calls by the policy's key. At a step's
end, calls that were served are told to the policy first, then those that end, then those that
arrive, each in the order of the programs' names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quire.core.ids import ProgramId
from quire.core.interfaces import Policy, ReadyCommand, ServiceFigures
from quire.testing.conformance.policy import ready


@dataclass
class Gantt:
    """``rows``: which program's call ran in each slot, by step. ``ended``: when each program did.
    ``waited``: units in which it had a call that did not run."""

    rows: list[list[str]] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    waited: dict[str, int] = field(default_factory=dict)

    @property
    def total_waited(self) -> int:
        return sum(self.waited.values())


@dataclass
class _Running:
    name: str
    command: ReadyCommand
    left: int


def run(policy: Policy, programs: Mapping[str, Sequence[int]], slots: int) -> Gantt:
    """``programs``: the units of each program's calls, one behind the other, all from time 0."""
    gantt = Gantt(waited=dict.fromkeys(programs, 0))
    figures = {name: ServiceFigures() for name in programs}
    numbers = {name: number for number, name in enumerate(sorted(programs))}
    todo = {name: list(calls) for name, calls in programs.items()}
    live: list[_Running] = []
    num_issued = 0

    def arrive(name: str, now: int) -> None:
        nonlocal num_issued
        num_issued += 1
        command = ready(
            num_issued,
            program=numbers[name],
            arrival_s=float(now),
            family_figures=figures[name],
            program_figures=figures[name],
        )
        command.path_tokens = figures[name].path_tokens
        policy.on_arrival(command, now)
        live.append(_Running(name, command, todo[name].pop(0)))

    for name in sorted(programs):
        arrive(name, 0)
    now = 0
    while live:
        policy.on_time(now)
        chosen = sorted(live, key=lambda one: policy.key(one.command))[:slots]
        gantt.rows.append([one.name for one in chosen])
        now += 1
        for one in live:
            if one not in chosen:
                gantt.waited[one.name] += 1
                figures[one.name].waiting_s += 1
        for one in sorted(chosen, key=lambda one: one.name):
            one.left -= 1
            one.command.ready_s = now
            one.command.service_tokens += 1
            one.command.service_s += 1
            figures[one.name].service_tokens += 1
            figures[one.name].service_s += 1
            policy.on_served(one.command, 1, 1.0, now)
        done = sorted((one for one in chosen if not one.left), key=lambda one: one.name)
        for one in done:
            own = figures[one.name]
            own.path_tokens = max(
                own.path_tokens, one.command.path_tokens + one.command.service_tokens
            )
            policy.on_ended(one.command, now)
            live.remove(one)
            if not todo[one.name]:
                gantt.ended[one.name] = now
                policy.on_program_ended(ProgramId(numbers[one.name]), now)
        for one in done:
            if todo[one.name]:
                arrive(one.name, now)
    return gantt
