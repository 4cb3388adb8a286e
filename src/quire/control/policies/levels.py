"""Queues of falling priority: what ``mlfq``, ``plas`` and ``atlas`` have in common.

Autellix 4.2.2 and algorithm 1. A call enters a queue by the service that it, or its program, had
before. When it has used up a queue's quantum it moves to the next queue's end; within a queue the
first to enter runs first. Owns the queues; a policy adds which service counts.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence

from quire.control.policies.promotions import Promotions, RankedCall
from quire.core.ids import ProgramId
from quire.core.policy import ReadyCommand
from quire.core.scheduler_config import LevelsConfig


class LevelQueues:
    """The queues under ``config``."""

    def __init__(self, config: LevelsConfig) -> None:
        self._thresholds = config.thresholds
        widths = [b - a for a, b in zip((0, *config.thresholds), config.thresholds, strict=False)]
        self._quanta = [*(config.quanta or widths), float("inf")]
        self._in_seconds = config.unit == "seconds"
        self._promotions = Promotions(config.beta, config.promoted_share)
        self._num_entered = 0
        self._calls: dict[ReadyCommand, RankedCall] = {}

    # -- what a policy defines -------------------------------------------------------------------

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def attained(self, command: ReadyCommand) -> float:
        """The service that counts for ``command`` at its arrival, in ``unit``."""

    def amount(self, num_tokens: int, service_s: float) -> float:
        """Service in ``unit``."""
        return service_s if self._in_seconds else num_tokens

    # -- Policy ----------------------------------------------------------------------------------

    @property
    def keeps_state(self) -> bool:
        return True

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        call = self._calls[command]
        return (call.level, call.order)

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None:
        call = self._calls[command] = RankedCall(command)
        self._enter(call, bisect_right(self._thresholds, self.attained(command)))

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None:
        call = self._calls[command]
        self._promotions.served(call, service_s, now_s)
        call.left -= self.amount(num_tokens, service_s)
        level, left = call.level, call.left
        while left <= 0:
            level += 1
            left += self._quanta[level]
        if level != call.level:
            self._promotions.had_its_turn(call)
            self._enter(call, level)
            call.left = left

    def on_ended(self, command: ReadyCommand, now_s: float) -> None:
        self._promotions.ended(self._calls.pop(command))

    def on_program_ended(self, program: ProgramId, now_s: float) -> None:
        pass

    def on_capacity(self, num_sequences: int) -> None:
        self._promotions.set_capacity(num_sequences)

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        promoted = self._promotions.take_due(now_s)
        for call in promoted:
            self._enter(call, 0)
        return [call.command for call in promoted]

    # -- queues ----------------------------------------------------------------------------------

    def _enter(self, call: RankedCall, level: int) -> None:
        """Enter ``call`` at the end of queue ``level``, with its quantum."""
        self._num_entered += 1
        call.level, call.order, call.left = level, self._num_entered, self._quanta[level]
        if level:
            self._promotions.watch(call)
