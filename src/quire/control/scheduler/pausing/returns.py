"""Estimates how soon programs call again, and how long it is worth waiting for them.

**The rule.** Pages that are kept for a program which waits for a tool or a person cost the pool:
blocks times the time held. Pages that are given up cost the engine the time to compute them again.
Both become engine time if a block has a value: while memory is short, the engine needs the whole
pool to work at all, so a block held for a second costs a second over the pool's blocks. To compute
a block again takes ``page_size`` times the time of a prompt token. So the program's own blocks
cancel out, and what remains is the *refill time*, that of computing as much as the whole pool
holds:

    keep while   chance to return within t / expected time held until then   >=   1 / refill time

for the best t. The left side is the Gittins index of the waits of the program's class, at the time
that it has waited so far. A program is held until the index is lower for the first time. This is a
price and no lock: programs whose hold is over are the first to yield, and no command is refused a
block because of a hold.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque

from quire.control.policies.gittins import gittins_index

MAX_SAMPLES = 256
MIN_SAMPLES = 16
"""With fewer samples nothing is known of a class."""
MAX_CLASSES = 512
MAX_LOOKS = 32
"""The most waits at which a return is evaluated: as many samples, evenly chosen."""
SHORTEST_S = 0.05
"""Shorter holds are not distinguished; longer ones are, in half octaves."""

NEVER_S = 1e9
"""The wait of a program that did not come back."""

UNKNOWN_CHANCE = 0.5
"""The chance that a program of a class without samples comes back."""

ReturnClass = tuple[str, str, bool]
"""Tenant, kind of program, and whether it has called only once: most programs that call a second
time go on, and of those that called once many never come back."""


class ReturnTimes:
    """The last waits of one class. ``is_first``: those after the first call of a program."""

    __slots__ = ("_hold_s", "_is_first", "_known", "_num_new", "_samples", "_sorted")

    def __init__(self, is_first: bool) -> None:
        self._is_first = is_first
        self._samples: deque[float] = deque()
        self._sorted: list[float] = []
        self._num_new = 0
        self._known: tuple[float, float] | None = None
        self._hold_s = 0.0

    def add(self, wait_s: float) -> None:
        """Add the wait of a program that came back after ``wait_s``, or not at all
        (``NEVER_S``)."""
        self._samples.append(wait_s)
        insort(self._sorted, wait_s)
        if len(self._samples) > MAX_SAMPLES:
            self._sorted.remove(self._samples.popleft())
        self._num_new += 1

    def hold_s(self, refill_s: float, most_s: float) -> float:
        """How long a program's pages are worth the blocks that they take, at most ``most_s``.
        ``refill_s``: the time to compute as much as the whole pool holds.

        In an unknown class a program that has come back before is held for ``refill_s``, as if it
        came back within as long as it has waited so far; another one is not held at all.
        """
        if len(self._samples) < MIN_SAMPLES:
            return 0.0 if self._is_first else min(refill_s, most_s)
        if self._is_outdated(refill_s, most_s):
            self._known, self._num_new = (refill_s, most_s), 0
            self._hold_s = self._learn(refill_s, most_s)
        return self._hold_s

    def chance(self, waited_s: float) -> float:
        """The chance that a program which has waited for ``waited_s`` comes back at all."""
        if len(self._samples) < MIN_SAMPLES:
            return UNKNOWN_CHANCE
        first = bisect_right(self._sorted, waited_s)
        num_left = len(self._sorted) - first
        num_never = len(self._sorted) - bisect_left(self._sorted, NEVER_S)
        return (num_left - num_never) / num_left if num_left else 0.0

    def back_s(self, waited_s: float, move_s: float) -> float | None:
        """The wait after which pages that have left the device are worth their blocks there again,
        for a program that has waited for ``waited_s``. ``move_s``: the time to move as much as the
        device holds. None: no such wait is known."""
        first = bisect_right(self._sorted, waited_s + move_s)
        later = self._sorted[first : bisect_left(self._sorted, NEVER_S)]
        if len(self._samples) < MIN_SAMPLES or not later or move_s <= 0:
            return None
        for wait_s in later[:: -(-len(later) // MAX_LOOKS)]:
            if gittins_index(self._sorted, wait_s - move_s) * move_s >= 1.0:
                return wait_s - move_s
        return None

    def _is_outdated(self, refill_s: float, most_s: float) -> bool:
        """Whether the hold must be computed anew. It is not at each call's end, but when enough has
        changed."""
        if self._known is None or self._num_new * 8 >= len(self._samples):
            return True
        known_s, known_most_s = self._known
        return known_most_s != most_s or not known_s / 1.25 <= refill_s <= known_s * 1.25

    def _learn(self, refill_s: float, most_s: float) -> float:
        waited_s = 0.0
        while waited_s < most_s and gittins_index(self._sorted, waited_s) * refill_s >= 1.0:
            waited_s = max(SHORTEST_S, waited_s * 2**0.5)
        return min(waited_s, most_s)


class Returns:
    """The return times of all classes; those that were not used for longest are forgotten."""

    def __init__(self) -> None:
        self._classes: OrderedDict[ReturnClass, ReturnTimes] = OrderedDict()

    def of(self, name: ReturnClass) -> ReturnTimes:
        found = self._classes.get(name)
        if found is None:
            found = self._classes[name] = ReturnTimes(name[2])
            if len(self._classes) > MAX_CLASSES:
                self._classes.popitem(last=False)
        else:
            self._classes.move_to_end(name)
        return found
