"""What families of programs call and leave behind, and whether there is room for one more.

Owns the families of one engine: their calls, their working sets, when they were quiet, and the
limits. It answers questions; ``pausing`` decides which family is paused and which goes on. A *call*
is a decode that samples: other commands are neither paused nor counted.
"""

from __future__ import annotations

from collections import OrderedDict

from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.memory.content import ChainNode, Content
from quire.control.memory.lower_tier import LowerTier
from quire.control.programs.program import Entry, Program
from quire.control.scheduler.pausing.returns import NEVER_S, Returns, ReturnTimes
from quire.control.scheduler.pausing.trail import Trail
from quire.control.scheduler.pausing.working_sets import FamilyWorkingSet, WorkingSets
from quire.control.scheduler.timing.chunk_time import ChunkTime
from quire.control.scheduler.waiting.admission import Admission
from quire.core.ids import ProgramId
from quire.core.scheduler_config import PausingConfig


class ProgramGate:
    """The families of one engine. ``paused``: families whose calls wait outside, longest first.
    ``num_inside``: calls that have begun and not ended. ``num_changes``: increases with everything
    that may make room."""

    def __init__(
        self,
        engine: EngineState,
        config: PausingConfig,
        admission: Admission,
        chunk_time: ChunkTime,
        time: EventTime,
    ) -> None:
        self._engine = engine
        self._config = config
        self._admission = admission
        self._chunk_time = chunk_time
        self._time = time
        self._returns = Returns()
        self._families: dict[ProgramId, FamilyWorkingSet] = {}
        self._family_of: dict[Entry, FamilyWorkingSet] = {}
        self.sets = WorkingSets()
        self.paused: OrderedDict[ProgramId, FamilyWorkingSet] = OrderedDict()
        self.num_inside = 0
        self.num_changes = 0

    # -- limits ----------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        """The blocks that memory has for working sets: the device, and as many as programs hold
        that are swapped out now. Further room on the host does not count: a call needs all on the
        device."""
        memory = self._engine.memory
        num_held = memory.host_tier.num_held + memory.disk_tier.num_held
        return memory.device.size + num_held - len(memory.transfers)

    @property
    def is_on(self) -> bool:
        return self._config.above > 0

    @property
    def most(self) -> float:
        """The blocks that families which are let in may have."""
        return self._config.above * self.num_blocks

    @property
    def room(self) -> float:
        """The blocks for families that are not let in yet; cold families make room."""
        return self._config.resume_below * self.num_blocks - self.sets.num_warm_blocks

    @property
    def refill_s(self) -> float | None:
        """How long the engine takes to compute as many tokens as fit, in seconds; None: the time of
        a token is not known yet."""
        token_s = self._chunk_time.token_s
        return None if token_s is None else token_s * self._engine.page_size * self.num_blocks

    @property
    def turn_s(self) -> float:
        """How long a family may stay once it was let in, while others wait, in seconds."""
        return self._config.max_s

    # -- what happens ----------------------------------------------------------------------------

    def of(self, entry: Entry) -> FamilyWorkingSet:
        """The family of a call that has arrived and not ended."""
        return self._family_of[entry]

    def is_paused(self, entry: Entry) -> bool:
        """Whether the family of a call that has arrived waits outside."""
        return bool(self.paused) and entry.program.family in self.paused

    def called(self, entry: Entry) -> None:
        """Add a call that has arrived."""
        program = entry.program
        family = self._families.get(program.family)
        if family is None:
            family = self._families[program.family] = FamilyWorkingSet(program)
        family.programs[program.id] = program
        if family.quiet_s is not None:
            self._class_of(family).add(self._time.now_s - family.quiet_s)
            family.quiet_s, family.has_left, family.has_spilled = None, False, False
            self.sets.wake(family)
        family.calls[entry] = None
        self._family_of[entry] = family

    def begins(self, entry: Entry) -> None:
        """Note that a call which is let in has a seat. It may lose the seat, and begin again."""
        family = self._family_of[entry]
        if entry in family.inside:
            return
        if not family.inside and family.num_calls:
            self.sets.resize(family, self.needed(family, entry))
        family.inside[entry] = None
        family.has_begun = True
        self.num_inside += 1
        family.num_calls += 1
        trail = family.trails.get(entry.program.id)
        if trail is None:
            trail = family.trails[entry.program.id] = Trail()
        trail.widen(len(family.inside))

    def finished(self, run: DecodeRun) -> None:
        """Note that a call has been answered; its pages still exist."""
        trail = self._trail_of(run.entry)
        if trail is not None:
            prefix = run.cursor.prefix
            leaf = prefix.parent if prefix.is_canonical else None
            trail.add(leaf, -(-run.position // self._engine.page_size))

    def _trail_of(self, entry: Entry) -> Trail | None:
        family = self._family_of.get(entry)
        return None if family is None else family.trails.get(entry.program.id)

    def ended(self, entry: Entry) -> None:
        """Remove a call that has ended, in whatever way."""
        family = self._family_of.pop(entry, None)
        if family is None:
            return
        family.remove(entry)
        if entry in family.inside:
            del family.inside[entry]
            self.num_inside -= 1
        self.num_changes += 1
        if family.calls:
            return
        if family.programs:
            self._rest(family)
        else:
            self._forget(family)

    def _rest(self, family: FamilyWorkingSet) -> None:
        """Note that ``family`` has no call any more."""
        now_s = self._time.now_s
        family.quiet_s = now_s
        family.paused_s = None
        self.paused.pop(family.id, None)
        if family.let_in_s is not None:
            self.sets.resize(family, family.working_set)
            self.sets.rest(family, now_s + self._hold_s(family))

    def program_ended(self, program: Program) -> None:
        """Remove ``program`` from its family. Its calls have ended, or are about to."""
        family = self._families.get(program.family)
        if family is None or family.programs.pop(program.id, None) is None:
            return
        self.num_changes += 1
        trail = family.trails.pop(program.id, None)
        if trail is not None and (self.paused or self._engine.memory.num_cached_below):
            self.offer(trail)
        if family.let_in_s is not None and not family.calls:
            self.sets.resize(family, family.working_set)
        if not family.programs and not family.calls:
            self._forget(family)

    def _forget(self, family: FamilyWorkingSet) -> None:
        if family.quiet_s is not None and self._time.now_s > family.hold_until_s:
            self._class_of(family).add(NEVER_S)
        self.paused.pop(family.id, None)
        if family.let_in_s is not None:
            self.sets.leave(family)
        del self._families[family.id]

    def offer(self, trail: Trail) -> None:
        """Have the pages that ``trail`` has left in the prefix index evicted first."""
        for leaf in trail.leaves():
            self._engine.memory.offer(leaf)

    # -- questions -------------------------------------------------------------------------------

    def needed(self, family: FamilyWorkingSet, entry: Entry) -> int:
        """The blocks that it takes to let ``entry``, a call of ``family``, in."""
        return max(family.working_set, self._admission.num_blocks_of(entry))

    def _class_of(self, family: FamilyWorkingSet) -> ReturnTimes:
        return self._returns.of((family.tenant, family.kind, family.num_calls <= 1))

    def has_place_on(self, tier: LowerTier, chance: float) -> bool:
        """Whether a page with this chance to be needed again finds a block of ``tier``: a free one,
        or that of a page less likely to be needed."""
        if tier.pool.num_free:
            return True
        victim = tier.first_cached()
        return victim is not None and self.chance_of(victim) < chance

    def chance_of(self, content: Content) -> float:
        """The chance that ``content``, which has no holder, is needed again. A content that several
        families have used is expected to be used by another one."""
        if content.is_shared:
            return 1.0
        family = None if content.family is None else self._families.get(content.family)
        if family is None:
            return 0.0
        if family.quiet_s is None:
            return 1.0
        return self._class_of(family).chance(self._time.now_s - family.quiet_s)

    def resting(self, content: Content) -> FamilyWorkingSet | None:
        """The quiet family that alone has used ``content``."""
        if content.is_shared or content.family is None:
            return None
        family = self._families.get(content.family)
        return None if family is None or family.quiet_s is None else family

    def back_s(self, family: FamilyWorkingSet, move_s: float) -> float | None:
        """When a quiet family's pages should be on the device again, if moving as much as the
        device holds takes ``move_s``."""
        assert family.quiet_s is not None
        waited_s = self._time.now_s - family.quiet_s
        back_s = self._class_of(family).back_s(waited_s, move_s)
        return None if back_s is None else family.quiet_s + back_s

    def has_place(self, family: FamilyWorkingSet) -> bool:
        """Whether a quiet family would be let in if it called now."""
        if not self.is_on or family.let_in_s is not None:
            return True
        self.sets.cool(self._time.now_s)
        return not self.paused and family.working_set <= self.room

    def leaves_of(self, family: FamilyWorkingSet) -> list[ChainNode]:
        """The last full pages of its contexts."""
        return [leaf for trail in family.trails.values() for leaf in trail.leaves()]

    @property
    def num_families(self) -> int:
        return len(self._families)

    def _hold_s(self, family: FamilyWorkingSet) -> float:
        most_s, refill_s = self._config.max_hold_s, self.refill_s
        return self._class_of(family).hold_s(most_s if refill_s is None else refill_s, most_s)

    def check_invariants(self) -> None:
        self.sets.check_invariants()
        num_inside = 0
        for family in self._families.values():
            assert family.inside.keys() <= family.calls.keys()
            num_inside += len(family.inside)
            assert not family.inside or family.let_in_s is not None, "a family runs outside"
            assert (family.quiet_s is None) == bool(family.calls)
            assert (family.id in self.paused) <= bool(family.calls), "a quiet family is paused"
        assert num_inside == self.num_inside or any(
            not family.programs for family in self._family_of.values()
        )
        calls = sum(len(family.calls) for family in self._families.values())
        assert calls == len(self._family_of) or any(
            not family.programs for family in self._family_of.values()
        )
