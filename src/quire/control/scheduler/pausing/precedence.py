"""Which family that is let in makes way, between two calls, for one that waits outside.

Without it a short program that arrives while memory is full waits for the ends of long ones, or for
their turns to be over.

Within a tenant a family makes way for one of a strictly smaller level (priority, then the
policy's), as decodes do for seats (``waiting.seats``). For another tenant's it does if that tenant
is behind in its share of the engine, and then still has less of memory for its weight. Neither can
be undone by the same rule.

Whoever makes way has to compute its context again, so a family first stays for ``STAY_REFILLS``
times the time in which the engine computes as much as memory holds. Even if all families take turns
after that, the engine spends no more than ``1 / STAY_REFILLS`` of its time on computing contexts
again. A family also stays if all that would make way leave too little room for the other one.
"""

from __future__ import annotations

from quire.control.event_time import EventTime
from quire.control.programs.program import Entry
from quire.control.scheduler.order.fairness import FairShare
from quire.control.scheduler.order.ranking import class_of, level_of
from quire.control.scheduler.pausing.gate import ProgramGate
from quire.control.scheduler.pausing.working_sets import FamilyWorkingSet

STAY_REFILLS = 2.0


class Precedence:
    """Compares the families that are let in with the first one that is not."""

    def __init__(self, gate: ProgramGate, share: FairShare, time: EventTime) -> None:
        self._gate = gate
        self._share = share
        self._time = time

    def makes_way(self, family: FamilyWorkingSet, entry: Entry, first: Entry) -> bool:
        """Whether ``family``, which is let in and is about to begin ``entry``, makes way for the
        family of ``first``, the first call that waits outside."""
        if not self._has_stayed(family) or not self._precedes(first, entry):
            return False
        missing = self._gate.needed(self._gate.of(first), first) - self._gate.room
        return missing > 0 and self._makes_room(missing, first)

    def _has_stayed(self, family: FamilyWorkingSet) -> bool:
        assert family.let_in_s is not None
        refill_s = self._gate.refill_s
        stayed_s = self._time.now_s - family.let_in_s
        return refill_s is not None and stayed_s >= STAY_REFILLS * refill_s

    def _makes_room(self, missing: float, first: Entry) -> bool:
        """Whether all families that make way for ``first``, now or at their next calls, have
        ``missing`` blocks."""
        for family in self._gate.sets:
            if not family.calls or not self._has_stayed(family):
                continue
            if self._precedes(first, next(iter(family.calls))):
                missing -= family.num_blocks
                if missing <= 0:
                    return True
        return False

    def _precedes(self, first: Entry, other: Entry) -> bool:
        if class_of(first) != class_of(other):
            return class_of(first) < class_of(other)
        ours, others = first.program.tenant, other.program.tenant
        if ours == others:
            return level_of(first) < level_of(other)
        if self._share.start(ours) > self._share.start(others):
            return False  # the other one would go on first
        blocks_of, weight = self._gate.sets.num_blocks_of, self._share.weight
        num_blocks = blocks_of(ours) + self._gate.needed(self._gate.of(first), first)
        return num_blocks / weight(ours) < blocks_of(others) / weight(others)
