"""Queues of falling priority: what ``mlfq``, ``plas`` and ``atlas`` have in common.

Autellix 4.2.2 and algorithm 1. A call enters a queue by what it, or its program, was served before.
When it has used up a queue's quantum it moves to the next queue's end; within a queue the first to
enter runs first. A call whose program has waited ``beta`` times its service moves to the first
queue. Owns the queues; a policy adds what counts as served before.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from quire.core.config import LevelsConfig
from quire.core.ids import CommandId, ProgramId
from quire.core.interfaces import ReadyCommand

MAX_STALE = 256
"""Ended calls that may stand among the watched, beside as many as there are live ones."""


class LevelCall:
    """A call in a queue. ``order``: its place there. ``left``: of the queue's quantum.
    ``is_watched``: whether it stands among those that may starve, or is due for promotion.
    ``forgiven_wait_s`` and ``forgiven_service_s``: its own, up to its last promotion."""

    __slots__ = (
        "command",
        "forgiven_service_s",
        "forgiven_wait_s",
        "is_promoted",
        "is_watched",
        "left",
        "level",
        "order",
        "served_s",
        "waited_s",
    )

    def __init__(self, command: ReadyCommand) -> None:
        self.command = command
        self.level = 0
        self.order = 0
        self.left = 0.0
        self.is_promoted = False
        self.is_watched = False
        self.served_s = command.ready_s
        self.waited_s = 0.0
        self.forgiven_wait_s = 0.0
        self.forgiven_service_s = 0.0


class LevelQueues:
    """The queues under ``config``. A call costs the logarithm of how many may starve when it
    changes queues, and nothing while it waits.

    **Starvation.** At most ``promoted_share`` of the sequences belong to promoted calls in the
    first queue; the others that are due wait for a place, the one that is due for longest first.
    A promoted call gives its place up when it ends or has had the first queue's quantum. So with
    P places, a call with D others due before it is promoted after at most D / P + 1 of such turns,
    and each turn waits only for the calls that entered the first queue before it.
    """

    def __init__(self, config: LevelsConfig) -> None:
        self._thresholds = config.thresholds
        widths = [b - a for a, b in zip((0, *config.thresholds), config.thresholds, strict=False)]
        self._quanta = [*(config.quanta or widths), float("inf")]
        self._in_seconds = config.unit == "seconds"
        self._beta = config.beta
        self._promoted_share = config.promoted_share
        self._max_promoted = 1
        self._num_promoted = 0
        self._num_entered = 0
        self._calls: dict[tuple[ProgramId, CommandId], LevelCall] = {}
        self._watched: list[tuple[float, int, LevelCall]] = []
        self._due: deque[LevelCall] = deque()
        self._num_stale = 0
        self.num_promotions = 0

    # -- what a policy defines -------------------------------------------------------------------

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def attained(self, command: ReadyCommand) -> float:
        """What counts as served before ``command`` arrived, in ``unit``."""

    def amount(self, num_tokens: int, service_s: float) -> float:
        """Service in ``unit``."""
        return service_s if self._in_seconds else num_tokens

    # -- Policy ----------------------------------------------------------------------------------

    @property
    def keeps_state(self) -> bool:
        return True

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        call = self._calls[command.program, command.command]
        return (call.level, call.order)

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None:
        call = LevelCall(command)
        self._calls[command.program, command.command] = call
        self._enter(call, bisect_right(self._thresholds, self.attained(command)))

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None:
        call = self._calls[command.program, command.command]
        call.waited_s += max(0.0, now_s - service_s - call.served_s)
        call.served_s = now_s
        call.left -= self.amount(num_tokens, service_s)
        level, left = call.level, call.left
        while left <= 0:
            level += 1
            left += self._quanta[level]
        if level != call.level:
            self._give_place_up(call)
            self._enter(call, level)
            call.left = left

    def on_ended(self, command: ReadyCommand, now_s: float) -> None:
        call = self._calls.pop((command.program, command.command))
        self._give_place_up(call)
        if call.is_watched:
            self._num_stale += 1
            if self._num_stale > MAX_STALE + len(self._calls):
                self._forget_stale()

    def on_program_ended(self, program: ProgramId, now_s: float) -> None:
        pass

    def on_capacity(self, num_sequences: int) -> None:
        self._max_promoted = max(1, int(self._promoted_share * num_sequences))

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        """Promotes the calls that are due, as far as there are places."""
        while self._watched and self._watched[0][0] <= now_s:
            _, _, call = heapq.heappop(self._watched)
            call.is_watched = False
            if not self._may_starve(call):
                continue
            if self._due_s(call) <= now_s:
                call.is_watched = True
                self._due.append(call)
            else:
                self._watch(call)
        promoted = []
        while self._due and self._num_promoted < self._max_promoted:
            call = self._due.popleft()
            call.is_watched = False
            if not self._may_starve(call):
                continue
            if self._due_s(call) > now_s:  # it was served while it stood here
                self._watch(call)
                continue
            self._promote(call, now_s)
            promoted.append(call.command)
        return promoted

    # -- queues ----------------------------------------------------------------------------------

    def _enter(self, call: LevelCall, level: int) -> None:
        """At the queue's end, with its quantum."""
        self._num_entered += 1
        call.level, call.order, call.left = level, self._num_entered, self._quanta[level]
        if level and not call.is_watched:
            self._watch(call)

    def _give_place_up(self, call: LevelCall) -> None:
        if call.is_promoted:
            call.is_promoted = False
            self._num_promoted -= 1

    # -- starvation ------------------------------------------------------------------------------

    def _is_live(self, call: LevelCall) -> bool:
        command = call.command
        return self._calls.get((command.program, command.command)) is call

    def _may_starve(self, call: LevelCall) -> bool:
        """Taken from among the watched: whether it still waits in a queue behind the first."""
        if not self._is_live(call):
            self._num_stale = max(0, self._num_stale - 1)
            return False
        return call.level > 0

    def _watch(self, call: LevelCall) -> None:
        """Look at ``call`` when it is due, if nothing of its program is served until then."""
        if self._beta is not None:
            call.is_watched = True
            self._num_entered += 1
            heapq.heappush(self._watched, (self._due_s(call), self._num_entered, call))

    def _due_s(self, call: LevelCall) -> float:
        """When its program's waiting time is ``beta`` times its service, without what ``call`` was
        forgiven. Waiting counts from when the call was ready, or was served last."""
        assert self._beta is not None
        family = call.command.family_figures
        waited_s = family.waiting_s - call.forgiven_wait_s
        service_s = max(0.0, family.service_s - call.forgiven_service_s)
        return call.command.ready_s + self._beta * service_s - waited_s

    def _forget_stale(self) -> None:
        """Calls that have ended stand among the watched until they would be due: drop them."""
        self._num_stale = 0
        self._watched = [one for one in self._watched if self._is_live(one[2])]
        heapq.heapify(self._watched)
        self._due = deque(call for call in self._due if self._is_live(call))

    def _promote(self, call: LevelCall, now_s: float) -> None:
        """To the first queue's end; of its program's figures only the call's own start anew."""
        call.is_promoted = True
        self._num_promoted += 1
        self.num_promotions += 1
        call.forgiven_wait_s = call.waited_s + max(0.0, now_s - call.command.ready_s)
        call.forgiven_service_s = call.command.service_s
        self._enter(call, 0)
