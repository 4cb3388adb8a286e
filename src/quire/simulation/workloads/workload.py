"""``Workload``: the source of plans."""

from __future__ import annotations

from random import Random
from typing import Protocol

from quire.simulation.workloads.plan import ProgramPlan


class Workload(Protocol):
    """Draws plans of one kind of programs. Keeps no state: a plan depends on ``random`` alone."""

    @property
    def name(self) -> str: ...

    def draw(self, random: Random) -> ProgramPlan: ...


def draw_programs(workload: Workload, num_programs: int, seed: int) -> list[ProgramPlan]:
    """The first programs of ``seed``. Each has its own random numbers: program 7 is the same
    however many are drawn."""
    return [
        workload.draw(Random(f"{workload.name}/{seed}/{number}")) for number in range(num_programs)
    ]
