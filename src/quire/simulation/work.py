"""The work of simulated programs, which the plans give: what is done and what is left.

Bounds such as ``srpt`` read it; no policy of a real node could. Work is counted in tokens of
answers; a token of a prompt counts as many as its cost relative to one. Owns the figures; must not
know what reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.ids import ProgramId
from quire.simulation.workloads.plan import CallPlan, ProgramPlan


@dataclass(slots=True)
class Work:
    """The work of one program with all that it launches."""

    total: float
    done: float = 0.0

    @property
    def left(self) -> float:
        return max(0.0, self.total - self.done)


class WorkTable:
    """The work of the programs that live, by the id of each of their members. The work of a message
    counts when its answers are delivered, after the decisions that its end causes."""

    def __init__(self, prompt_weight: float) -> None:
        self._prompt_weight = prompt_weight
        self._works: dict[ProgramId, Work] = {}

    def total(self, plan: ProgramPlan) -> float:
        return plan.num_output_tokens + self._prompt_weight * plan.num_prompt_tokens

    def start(self, plan: ProgramPlan) -> Work:
        return Work(self.total(plan))

    def join(self, member: ProgramId, work: Work) -> None:
        self._works[member] = work

    def leave(self, member: ProgramId) -> None:
        del self._works[member]

    def of(self, member: ProgramId) -> Work | None:
        """The work of the program with this member; None if it has ended, and its commands are
        about to."""
        return self._works.get(member)

    def prompt_done(self, work: Work, call: CallPlan) -> None:
        if call.repeats is None:
            work.done += self._prompt_weight * call.num_prompt
