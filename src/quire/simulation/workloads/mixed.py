"""``mixed``: programs of several workloads, each as likely as the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from quire.simulation.workloads.plan import ProgramPlan
from quire.simulation.workloads.workload import Workload


@dataclass(frozen=True)
class Mixed:
    """Autellix, 6.1: ShareGPT, BFCL and LATS in equal parts."""

    parts: Sequence[Workload]
    name: str = "mixed"

    def draw(self, random: Random) -> ProgramPlan:
        return random.choice(self.parts).draw(random)
