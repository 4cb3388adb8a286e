"""The working sets of the families of programs that are let in, and how much of memory they take.

A *family* (a root program with all below it) is let in or not as a whole. Owns the sum, the order
in which families were let in, and which of the quiet ones are past their hold: these are *cold*,
their blocks are available to any family that calls. A family counts from the end of its first call.
Decides nothing and moves nothing.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator

from quire.control.programs.program import Entry, Program
from quire.control.scheduler.order.ranking import class_of, memory_level_of
from quire.control.scheduler.pausing.trail import Trail
from quire.core.ids import ProgramId, TenantId

ClassAndLevel = tuple[int, tuple[float, float]]
"""Those of a call (``order.ranking``); the smaller goes first."""


def _class_and_level_of(call: Entry) -> ClassAndLevel:
    return class_of(call), memory_level_of(call)


class FamilyWorkingSet:
    """The state of one family on one engine.

    ``calls``: its unfinished decodes; ``inside``: those that have begun. ``num_blocks``: what it
    counts while it is let in. ``let_in_s``: when that was, None while it is not. ``has_begun``: a
    call of it has begun since then. ``paused_s``: since when a call of it waits outside.
    ``quiet_s``: when its last call ended, None while it has one. ``hold_until_s``: until when it is
    held while it is quiet. ``is_cold``: it is past that.
    ``has_left``, ``has_spilled``: since it is quiet, pages of it have gone to a lower tier, or to
    the disk.
    """

    __slots__ = (
        "_last",
        "calls",
        "has_begun",
        "has_left",
        "has_spilled",
        "hold_until_s",
        "id",
        "inside",
        "is_cold",
        "kind",
        "let_in_s",
        "num_blocks",
        "num_calls",
        "paused_s",
        "programs",
        "quiet_s",
        "tenant",
        "trails",
    )

    def __init__(self, program: Program) -> None:
        self.id = program.family
        self.tenant = program.tenant
        self.kind = program.kind
        self.programs: dict[ProgramId, Program] = {}
        self.trails: dict[ProgramId, Trail] = {}
        self.calls: dict[Entry, None] = {}
        self.inside: dict[Entry, None] = {}
        self.num_calls = 0
        self.num_blocks = 0
        self.let_in_s: float | None = None
        self.has_begun = False
        self._last: ClassAndLevel | None = None
        self.paused_s: float | None = None
        self.quiet_s: float | None = None
        self.hold_until_s = 0.0
        self.has_left = False
        self.has_spilled = False
        self.is_cold = False

    @property
    def class_and_level(self) -> ClassAndLevel:
        """Those of its first unfinished call, else of the call that ended last."""
        if self.calls:
            return _class_and_level_of(next(iter(self.calls)))
        assert self._last is not None, "a family has never called"
        return self._last

    def remove(self, call: Entry) -> None:
        """Remove a call that has ended."""
        del self.calls[call]
        if not self.calls:
            self._last = _class_and_level_of(call)

    @property
    def working_set(self) -> int:
        """Its size, in blocks."""
        return sum([trail.num_blocks for trail in self.trails.values()])


class WorkingSets:
    """The families that are let in. ``num_blocks``: of all together; ``num_cold_blocks``: of the
    cold ones among them."""

    def __init__(self) -> None:
        self._let_in: OrderedDict[ProgramId, FamilyWorkingSet] = OrderedDict()
        self._cold: OrderedDict[ProgramId, FamilyWorkingSet] = OrderedDict()
        self._holds: list[tuple[float, int, FamilyWorkingSet]] = []
        self._num_holds = 0
        self._num_blocks_of: dict[TenantId, int] = {}
        self.num_blocks = 0
        self.num_cold_blocks = 0

    def __len__(self) -> int:
        return len(self._let_in)

    def __iter__(self) -> Iterator[FamilyWorkingSet]:
        """The families in the order in which they were let in."""
        return iter(self._let_in.values())

    def num_blocks_of(self, tenant: TenantId) -> int:
        """The blocks of the families of one tenant."""
        return self._num_blocks_of.get(tenant, 0)

    @property
    def num_warm_blocks(self) -> int:
        return self.num_blocks - self.num_cold_blocks

    def let_in(self, family: FamilyWorkingSet, num_blocks: int, now_s: float) -> None:
        assert family.let_in_s is None, "a family is let in twice"
        self._let_in[family.id] = family
        family.let_in_s, family.num_blocks, family.has_begun = now_s, num_blocks, False
        self._count(family, num_blocks)

    def leave(self, family: FamilyWorkingSet) -> None:
        assert family.let_in_s is not None, "a family leaves that is not in"
        self.wake(family)
        del self._let_in[family.id]
        self._count(family, -family.num_blocks)
        family.let_in_s, family.num_blocks = None, 0

    def resize(self, family: FamilyWorkingSet, num_blocks: int) -> None:
        """Count ``num_blocks`` for ``family``, which is let in, from now on."""
        num_more = num_blocks - family.num_blocks
        self._count(family, num_more)
        if family.is_cold:
            self.num_cold_blocks += num_more
        family.num_blocks = num_blocks

    def _count(self, family: FamilyWorkingSet, num_more: int) -> None:
        self.num_blocks += num_more
        num_blocks = self._num_blocks_of.get(family.tenant, 0) + num_more
        if num_blocks:
            self._num_blocks_of[family.tenant] = num_blocks
        else:  # so that tenants who have left take no room
            self._num_blocks_of.pop(family.tenant, None)

    def rest(self, family: FamilyWorkingSet, until_s: float) -> None:
        """Hold ``family``, which has no call, until ``until_s``."""
        family.hold_until_s = until_s
        self._num_holds += 1
        heapq.heappush(self._holds, (until_s, self._num_holds, family))

    def wake(self, family: FamilyWorkingSet) -> None:
        """Note that ``family`` calls or leaves, so that it is not cold."""
        if family.is_cold:
            family.is_cold = False
            del self._cold[family.id]
            self.num_cold_blocks -= family.num_blocks

    def cool(self, now_s: float) -> None:
        """Make families cold whose holds are over."""
        holds = self._holds
        while holds and holds[0][0] <= now_s:
            until_s, _, family = heapq.heappop(holds)
            is_current = family.quiet_s is not None and family.hold_until_s == until_s
            if is_current and family.let_in_s is not None and not family.is_cold:
                family.is_cold = True
                self._cold[family.id] = family
                self.num_cold_blocks += family.num_blocks
        if len(holds) > 64 + 4 * len(self._let_in):
            self._forget_old_holds()

    def _forget_old_holds(self) -> None:
        """Drop outdated holds: most end with a call, and they must not pile up."""
        self._holds = [hold for hold in self._holds if _is_current(hold)]
        heapq.heapify(self._holds)

    def coldest(self) -> FamilyWorkingSet | None:
        """The family whose hold was over first."""
        return next(iter(self._cold.values()), None)

    def next_cold_s(self) -> float | None:
        """The time at which the next hold is over; None if there is none."""
        while self._holds and not _is_current(self._holds[0]):
            heapq.heappop(self._holds)
        return self._holds[0][0] if self._holds else None

    def check_invariants(self) -> None:
        assert self.num_blocks == sum(family.num_blocks for family in self._let_in.values())
        by_tenant: dict[TenantId, int] = {}
        for family in self._let_in.values():
            if family.num_blocks:
                by_tenant[family.tenant] = by_tenant.get(family.tenant, 0) + family.num_blocks
        assert self._num_blocks_of == by_tenant
        assert self.num_cold_blocks == sum(one.num_blocks for one in self._cold.values())
        for family in self._let_in.values():
            assert family.let_in_s is not None
            assert family.is_cold == (family.id in self._cold)
            assert not family.is_cold or not family.calls, "a family with a call is cold"
        assert self._cold.keys() <= self._let_in.keys()


def _is_current(hold: tuple[float, int, FamilyWorkingSet]) -> bool:
    until_s, _, family = hold
    is_kept = family.quiet_s is not None and family.let_in_s is not None and not family.is_cold
    return is_kept and family.hold_until_s == until_s
