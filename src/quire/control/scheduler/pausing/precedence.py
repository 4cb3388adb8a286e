"""Which families that are let in make way, each at its next call, for one that waits outside.

Without it a short program that arrives while memory is full waits for the ends of long ones, or for
their turns to be over.

Within a tenant a family makes way for one of a strictly smaller level (priority, then the
policy's), as decodes do for seats (``waiting.seats``). For another tenant's it does if that tenant
is behind in its share of the engine, and then still has less of memory for its weight. Neither can
be undone by the same rule.

The other family is let in at once. Until those that make way have ended their calls, all that are
let in need more than memory has. Then admission decides which calls begin, and preemption which
are interrupted, as they do without pauses.

Whoever makes way has to compute its context again, so a family first stays for ``STAY_REFILLS``
times the time in which the engine computes as much as memory holds. Even if all families take turns
after that, the engine spends no more than ``1 / STAY_REFILLS`` of its time on computing contexts
again. All stay if those that would make way leave too little room for the other one.
"""

from __future__ import annotations

from quire.control.event_time import EventTime
from quire.control.programs.program import Entry
from quire.control.scheduler.order.fairness import FairShare
from quire.control.scheduler.pausing.gate import ProgramGate
from quire.control.scheduler.pausing.working_sets import FamilyWorkingSet

STAY_REFILLS = 2.0
LOOKS_A_REFILL = 32
"""How often a call for which there was too little room is looked at again, in the time in which the
engine computes as much as memory holds. Each look costs as much as there are families."""


class Precedence:
    """Compares the families of one engine that are let in with one that is not, or with one
    another."""

    def __init__(self, gate: ProgramGate, share: FairShare, time: EventTime) -> None:
        self._gate = gate
        self._share = share
        self._time = time
        self._refused: Entry | None = None
        self._look_again_s = 0.0

    def may_pass(self, family: FamilyWorkingSet, entry: Entry) -> bool:
        """Whether ``family``, whose call ``entry`` is the first that waits outside, is let in
        although there is no room: others that are let in make way at their next calls."""
        if entry is self._refused and self._time.now_s < self._look_again_s:
            return False
        missing = self._gate.needed(family, entry) - self._gate.room
        for other in self._gate.sets:
            if not self._has_stayed(other):
                break  # those behind it came in later
            if other.calls and self._precedes(family, other):
                missing -= other.num_blocks
                if missing <= 0:
                    return True
        self._refused = entry
        self._look_again_s = self._time.now_s + (self._gate.refill_s or 0.0) / LOOKS_A_REFILL
        return False

    def keeps_before(
        self, other: FamilyWorkingSet, family: FamilyWorkingSet, *, is_later: bool
    ) -> bool:
        """Whether ``other`` keeps its room rather than ``family``, where there is too little for
        both: who was let in first does, unless it has stayed and makes way for the other one.
        ``is_later``: ``other`` was let in later."""
        if is_later:
            return self._has_stayed(family) and self._precedes(other, family)
        return not (self._has_stayed(other) and self._precedes(family, other))

    def _has_stayed(self, family: FamilyWorkingSet) -> bool:
        assert family.let_in_s is not None
        refill_s = self._gate.refill_s
        stayed_s = self._time.now_s - family.let_in_s
        return refill_s is not None and stayed_s >= STAY_REFILLS * refill_s

    def _precedes(self, family: FamilyWorkingSet, other: FamilyWorkingSet) -> bool:
        """Whether ``other``, which is let in, makes way for ``family``."""
        our_class, our_level = family.class_and_level
        their_class, their_level = other.class_and_level
        if our_class != their_class:
            return our_class < their_class
        ours, others = family.tenant, other.tenant
        if ours == others:
            return our_level < their_level
        if self._share.start(ours) > self._share.start(others):
            return False  # the other one would go on first
        blocks_of, weight = self._gate.sets.num_blocks_of, self._share.weight
        num_blocks = blocks_of(ours)
        if family.let_in_s is None:
            num_blocks += self._gate.needed(family, next(iter(family.calls)))
        return num_blocks / weight(ours) < blocks_of(others) / weight(others)
