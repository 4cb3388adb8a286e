"""Promotions: calls that have waited too long move to the first queue, so many at a time.

Owns when a call is due (Autellix 4.2.2, anti-starvation) and how many may be promoted at once. Does
not know in which queue a call is, nor why.

A call with a deadline may be due sooner: between ``urgent_s``, which its policy sets, and the
deadline.

A call is due when its family has waited ``beta`` times its service, both without the call's own
part up to its last promotion. A family that has had no service would be due at once, and go before
all others whatever its rank; so a policy that ranks newcomers may have each family count with at
least the mean service of a call.

A call that waits outside because its program is paused is not promoted for its waiting: it would
take memory from others, which compute their contexts again, for one turn. ``pausing`` bounds how
long it waits there. It is looked at again every ``PAUSED_S`` seconds; a call that is urgent is
promoted wherever it waits.

At most ``share`` of the sequences belong to promoted calls; the others that are due wait for a
place, the one that is due for longest first. A promoted call gives its place up when it ends or has
had its turn in the first queue. So with P places, a call with D others due before it is promoted
after at most D / P + 1 of such turns, and each turn waits only for the calls that entered the first
queue before it.
"""

from __future__ import annotations

import heapq
from math import inf

from quire.core.policy import ReadyCommand

MAX_STALE = 256
"""The number of ended calls that may be among the watched ones, beside as many as there are
others."""
PAUSED_S = 5.0
"""After this time, in seconds, a call that is due and waits outside is looked at again."""
_SMOOTHING = 0.1
"""How much a call that has ended counts for the mean service of a call."""


class RankedCall:
    """A call of a policy with queues. ``level``: its queue, 0 is the first. ``order``: its place
    there. ``left``: what is left of the queue's quantum. The rest belongs to ``Promotions``:
    ``waited_s`` is its own waiting time until ``served_s``, when it was served last;
    ``is_watched``: it is among those that may starve. ``urgent_s``: from then on it is due whatever
    the service of its family."""

    __slots__ = (
        "command",
        "forgiven_service_s",
        "forgiven_wait_s",
        "is_over",
        "is_promoted",
        "is_watched",
        "left",
        "level",
        "order",
        "served_s",
        "urgent_s",
        "waited_s",
    )

    def __init__(self, command: ReadyCommand) -> None:
        self.command = command
        self.level = 0
        self.order = 0
        self.left = 0.0
        self.is_over = False
        self.is_promoted = False
        self.is_watched = False
        self.served_s = command.ready_s
        self.urgent_s = inf
        self.waited_s = 0.0
        self.forgiven_wait_s = 0.0
        self.forgiven_service_s = 0.0


class Promotions:
    """The calls that may starve. ``beta``: None promotes no call for its waiting.
    ``counts_a_call``: a family counts with at least the mean service of a call. Examining a call
    costs the logarithm of their number; a call that waits costs nothing, however many are due."""

    def __init__(self, beta: float | None, share: float, *, counts_a_call: bool = False) -> None:
        self._beta = beta
        self._share = share
        self._counts_a_call = counts_a_call
        self._call_s = 0.0
        self._max_promoted = 1
        self._num_promoted = 0
        self._num_watched = 0
        self._num_stale = 0
        self._watched: list[tuple[float, int, RankedCall]] = []

    def set_capacity(self, num_sequences: int) -> None:
        self._max_promoted = max(1, int(self._share * num_sequences))

    def served(self, call: RankedCall, service_s: float, now_s: float) -> None:
        """Note that ``call`` was in a message of ``service_s`` seconds that ended at ``now_s``."""
        call.waited_s += max(0.0, now_s - service_s - call.served_s)
        call.served_s = now_s

    def watch(self, call: RankedCall) -> None:
        """Watch ``call``, which is not in the first queue. It is examined when it would be due if
        its family had no service until then."""
        if call.is_watched or (self._beta is None and call.urgent_s == inf):
            return
        self._watch_from(self._due_s(call), call)

    def _watch_from(self, at_s: float, call: RankedCall) -> None:
        call.is_watched = True
        self._num_watched += 1
        heapq.heappush(self._watched, (at_s, self._num_watched, call))

    def had_its_turn(self, call: RankedCall) -> None:
        """Note that ``call`` has left the first queue, or has ended."""
        if call.is_promoted:
            call.is_promoted = False
            self._num_promoted -= 1

    def ended(self, call: RankedCall) -> None:
        self.had_its_turn(call)
        call.is_over = True
        if self._counts_a_call:
            self._call_s += _SMOOTHING * (call.command.service_s - self._call_s)
        if call.is_watched:
            self._num_stale += 1
            num_live = len(self._watched) - self._num_stale
            if self._num_stale > MAX_STALE + num_live:
                self._forget_stale()

    def take_due(self, now_s: float) -> list[RankedCall]:
        """The calls to promote now. No call is examined while there is no place."""
        promoted: list[RankedCall] = []
        while self._num_promoted < self._max_promoted:
            if not self._watched or self._watched[0][0] > now_s:
                break
            _, _, call = heapq.heappop(self._watched)
            call.is_watched = False
            if call.urgent_s < inf and _deadline_s(call) <= now_s:
                call.urgent_s = inf  # its deadline has passed
            if call.is_over:
                self._num_stale -= 1
            elif not call.level:
                continue
            elif self._due_s(call) > now_s:  # its family was served meanwhile
                self.watch(call)
            elif call.command.is_paused and call.urgent_s > now_s:
                self._watch_from(min(call.urgent_s, now_s + PAUSED_S), call)
            else:
                self._promote(call, now_s)
                promoted.append(call)
        return promoted

    def _due_s(self, call: RankedCall) -> float:
        """When ``call`` is due. Waiting counts from when it was ready, or was served last."""
        if self._beta is None:
            return call.urgent_s
        family = call.command.family_figures
        waited_s = family.waiting_s - call.forgiven_wait_s
        service_s = max(self._call_s, family.service_s - call.forgiven_service_s)
        return min(call.urgent_s, call.command.ready_s + self._beta * service_s - waited_s)

    def _promote(self, call: RankedCall, now_s: float) -> None:
        """Promote ``call``; of its family's figures only its own part counts from zero again."""
        call.is_promoted = True
        self._num_promoted += 1
        call.forgiven_wait_s = call.waited_s + max(0.0, now_s - call.command.ready_s)
        call.forgiven_service_s = call.command.service_s

    def _forget_stale(self) -> None:
        """Drop ended calls, which would stay among the watched ones until they would be due."""
        self._num_stale = 0
        self._watched = [one for one in self._watched if not one[2].is_over]
        heapq.heapify(self._watched)


def _deadline_s(call: RankedCall) -> float:
    deadline_s = call.command.program_figures.deadline_s
    return inf if deadline_s is None else deadline_s
