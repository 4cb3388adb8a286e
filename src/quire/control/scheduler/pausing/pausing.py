"""Pauses programs between two calls when their working sets have no room, and lets them go on.

Without it the calls of more programs than fit push each other's pages out, and each computes its
whole context again. Owns which families are paused; ``gate`` has the figures, ``backlog`` the order
of those that wait.

**Who is let in.** A family that is let in goes on calling while all that are let in have at most
``above`` of memory together. A family that is not (a new one, or one that was paused) is let in if
less than ``resume_below`` is then taken. Cold families (``returns`` states when) give up their room
to any that calls, and families of larger levels make way for it at their next calls
(``precedence``). When those that are let in grow beyond the limit, those that came in last are
paused at their next calls, or those that have stayed for a while and whose levels are larger. No
family is paused within a call.

**Who goes on.** Paused families go on in the order of tenants' shares and the policy; none passes
the first.

**Why none waits for ever.** A family whose call has waited for ``max_s`` is *overdue*: the one of
these that has waited longest goes before all others, and families that have been let in for
``max_s`` make way for it between two calls, until it has room. So with k families overdue before
it, a call is paused for at most ``(k + 2) * (max_s + c)``, where c is the time of the longest call;
while families fit n at a time, k counts in groups of n. The oldest active program, which may claim
from all, goes on whatever room there is when it is overdue or nobody computes a call: so some
program always goes on. One that holds embeds, for which others may wait, is never paused.
"""

from __future__ import annotations

from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.programs.program import Entry, Program
from quire.control.programs.table import ProcessTable
from quire.control.scheduler.order.fairness import FairShare
from quire.control.scheduler.pausing.gate import ProgramGate
from quire.control.scheduler.pausing.precedence import Precedence
from quire.control.scheduler.pausing.working_sets import FamilyWorkingSet
from quire.control.scheduler.waiting.backlog import Backlog


class FamilyPausing:
    """Pauses the families of one engine. ``num_pauses``: how often a family has been paused."""

    def __init__(
        self,
        engine: EngineState,
        table: ProcessTable,
        backlog: Backlog,
        gate: ProgramGate,
        share: FairShare,
        time: EventTime,
    ) -> None:
        self._engine = engine
        self._precedence = Precedence(gate, share, time)
        self._table = table
        self._backlog = backlog
        self._gate = gate
        self._sets = gate.sets
        self._time = time
        self._seen = -1
        self._look_s: float | None = None
        self.num_pauses = 0

    @property
    def num_paused(self) -> int:
        """The number of families with calls that wait outside."""
        return len(self._gate.paused)

    @property
    def num_blocks(self) -> int:
        """The blocks of the working sets of all that are let in."""
        return self._sets.num_blocks

    # -- at a call's beginning -------------------------------------------------------------------

    def lets_in(self, entry: Entry) -> bool:
        """Whether ``entry`` may begin as far as its family is concerned. Changes nothing."""
        if not self._gate.is_on:
            return True
        family = self._gate.of(entry)
        if family.inside or entry.program.embeds:
            return True
        if family.let_in_s is None:
            return not self._gate.paused and self._has_room(family, entry)
        return self._may_go_on(family, entry)

    def _has_room(self, family: FamilyWorkingSet, entry: Entry) -> bool:
        return not self._sets.num_warm_blocks or self._gate.needed(family, entry) <= self._gate.room

    def _may_go_on(self, family: FamilyWorkingSet, entry: Entry) -> bool:
        """Whether ``entry`` of ``family``, which is let in, may begin."""
        if not family.has_begun or not self._gate.num_inside:
            return True
        needed = self._gate.needed(family, entry)
        num_others = self._sets.num_warm_blocks - family.num_blocks
        return num_others + needed <= self._gate.most or self._keeps_room(family, needed)

    def _keeps_room(self, family: FamilyWorkingSet, needed: int) -> bool:
        """Whether the families that keep their room before it leave enough for it."""
        room, is_later = self._gate.most - needed, False
        for other in self._sets:
            if other is family:
                is_later = True
            elif not other.is_cold and self._precedence.keeps_before(
                other, family, is_later=is_later
            ):
                room -= other.num_blocks
                if room < 0:
                    return False
        return True

    def _had_its_turn(self, family: FamilyWorkingSet) -> bool:
        assert family.let_in_s is not None
        return self._time.now_s - family.let_in_s >= self._gate.turn_s

    def begin(self, entry: Entry) -> None:
        """Give ``entry``, which is let in, a place: it gets a seat."""
        if not self._gate.is_on:
            return
        family = self._gate.of(entry)
        if family.let_in_s is None:
            self._let_in(family, entry)
        family.paused_s = None
        self._gate.begins(entry)
        self._clear_cold()

    def _let_in(self, family: FamilyWorkingSet, entry: Entry) -> None:
        num_blocks = self._gate.needed(family, entry) if family.num_calls else 0
        self._sets.let_in(family, num_blocks, self._time.now_s)

    def _clear_cold(self) -> None:
        """Put cold families out, as far as those that are let in need their room."""
        sets, most = self._sets, self._gate.most
        while sets.num_blocks > most and (family := sets.coldest()) is not None:
            self._put_out(family)

    # -- pausing ---------------------------------------------------------------------------------

    def pause(self, entry: Entry) -> None:
        """Pause the family of ``entry``, which is not let in: it waits outside with all its calls,
        unless others make way for it."""
        self._pause(self._gate.of(entry))
        self.review()

    def _pause(self, family: FamilyWorkingSet) -> None:
        if family.let_in_s is not None:
            self._put_out(family)
        self._gate.paused[family.id] = family
        if family.paused_s is None:
            family.paused_s = self._time.now_s
            self.num_pauses += 1
        else:  # it was about to go on
            self._gate.paused.move_to_end(family.id, last=False)
        for call in family.calls:
            if call in self._backlog.seats:
                self._backlog.pause(call)

    def _put_out(self, family: FamilyWorkingSet) -> None:
        """Put ``family`` out: what it has on the device is reclaimed first."""
        self._sets.leave(family)
        self._gate.num_changes += 1
        for trail in family.trails.values():
            self._gate.offer(trail)
        for program in family.programs.values():
            if program.pages:
                self._table.offer_holder(program, self._engine.id)

    # -- going on --------------------------------------------------------------------------------

    def review(self) -> None:
        """Let the families go on that have room now, as a message is planned."""
        self._sets.cool(self._time.now_s)
        if not self._gate.paused:
            return
        self._resume_oldest()
        while (family := self._next()) is not None:
            self._resume(family)
        self._seen, self._look_s = self._gate.num_changes, self.next_look_s()

    def _resume_oldest(self) -> None:
        """Let the oldest active program go on if it is overdue, or nobody computes a call."""
        oldest = self._table.oldest_active
        family = None if oldest is None else self._gate.paused.get(oldest.family)
        if family is not None and (not self._gate.num_inside or self._is_overdue(family)):
            self._resume(family)

    def _next(self) -> FamilyWorkingSet | None:
        """The family that goes on now; None if none does."""
        overdue = self._overdue()
        if overdue is not None:
            return overdue if self._make_way(overdue) else None
        entry = self._backlog.paused.first()
        if entry is None:
            return None
        family = self._gate.of(entry)
        if self._has_room(family, entry) or self._precedence.may_pass(family, entry):
            return family
        return None

    def _overdue(self) -> FamilyWorkingSet | None:
        """The family that has waited longest, if that is too long."""
        family = next(iter(self._gate.paused.values()), None)
        return family if family is not None and self._is_overdue(family) else None

    def _is_overdue(self, family: FamilyWorkingSet) -> bool:
        """Whether a call of ``family`` has waited outside for too long, and has not begun since."""
        paused_s = family.paused_s
        return paused_s is not None and self._time.now_s - paused_s >= self._gate.turn_s

    def _fits(self, family: FamilyWorkingSet) -> bool:
        return self._has_room(family, next(iter(family.calls)))

    def _make_way(self, overdue: FamilyWorkingSet) -> bool:
        """Whether there is room for ``overdue``, after families that have had their turns and run
        no call have made way, one after the other."""
        for family in list(self._sets):
            if self._fits(overdue) or not self._had_its_turn(family):
                break
            if family.inside or family.is_cold:
                continue
            if family.calls:
                self._pause(family)
            else:
                self._put_out(family)
        return self._fits(overdue)

    def _resume(self, family: FamilyWorkingSet) -> None:
        del self._gate.paused[family.id]
        self._let_in(family, next(iter(family.calls)))
        for call in family.calls:
            self._backlog.resume(call)
        for program in family.programs.values():
            self._table.keep_holder(program, self._engine.id)

    # -- when to look again ----------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether a message that is planned now might let a family go on."""
        if not self._gate.paused:
            return False
        if self._seen != self._gate.num_changes:
            return True
        return self._look_s is not None and self._look_s <= self._time.now_s

    def next_look_s(self) -> float | None:
        """When time alone may let a family go on; None: only an event can."""
        if not self._gate.paused:
            return None
        first = next(iter(self._gate.paused.values()))
        assert first.paused_s is not None, "a family is paused since no time"
        times_s = [first.paused_s + self._gate.turn_s, self._sets.next_cold_s()]
        let_in = next(iter(self._sets), None)
        if let_in is not None and let_in.let_in_s is not None:
            times_s.append(let_in.let_in_s + self._gate.turn_s)
        later = [at_s for at_s in times_s if at_s is not None and at_s > self._time.now_s]
        return min(later, default=None)

    def program_ended(self, program: Program) -> None:
        """Remove ``program``, which has left the process table."""
        self._gate.program_ended(program)

    def check_invariants(self) -> None:
        self._gate.check_invariants()
        for family in self._gate.paused.values():
            assert family.let_in_s is None, "a family is paused and let in"
            assert not family.inside, "a family is paused within a call"
            for call in family.calls:
                assert call in self._backlog.paused, "a call of a paused family does not wait"
        for entry in self._backlog.paused:
            assert self._gate.of(entry).id in self._gate.paused, "a call waits outside for nobody"
