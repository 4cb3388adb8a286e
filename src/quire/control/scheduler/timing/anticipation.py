"""Decides whether an idle engine waits a moment for programs that it has just answered.

A program that reads every step issues its next commands soon after each answer. If anything else is
ready by then, a work-conserving engine starts without it; from then on the two take turns with
messages that are half as full, and where reading the weights is the main cost of a message, each
gets half of its speed. Waiting once brings them into step (docs/decisions/024-anticipation.md).
Owns the choice of the queues to wait for and until when; it sends nothing.
"""

from __future__ import annotations

import math

from quire.control.programs.program import CommandQueue

_SMOOTHING = 0.3
_MARGIN = 2.0
"""A queue is waited for until this multiple of its usual pause has passed."""


class Anticipation:
    """``share``: the longest wait, as a share of the last message's time; 0: no waits. A queue is
    expected if its last answers were followed by a command within that time.

    A queue is expected if its last answers were followed by a command within that time.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._limit_s = 0.0
        self._answered: dict[CommandQueue, float] = {}
        self._pause_s: dict[CommandQueue, float] = {}

    def observe(self, message_s: float) -> None:
        """Note that a message took the engine ``message_s``."""
        self._limit_s = self._share * message_s

    def answered(self, queue: CommandQueue, now_s: float) -> None:
        """Note that all commands of ``queue`` have ended."""
        self._answered[queue] = now_s

    def issued(self, queue: CommandQueue, now_s: float) -> None:
        """Note that a command has arrived; only the first one after an answer counts."""
        answered_s = self._answered.pop(queue, None)
        if answered_s is None:
            return
        pause_s, usual_s = now_s - answered_s, self._usual_s(queue)
        if pause_s > self._limit_s:
            pause_s = math.inf
        elif usual_s < math.inf:
            pause_s = usual_s + _SMOOTHING * (pause_s - usual_s)
        self._pause_s[queue] = pause_s

    def forget(self, queue: CommandQueue) -> None:
        """Forget ``queue``, which is closed."""
        self._answered.pop(queue, None)
        self._pause_s.pop(queue, None)

    def wait_until_s(self, now_s: float) -> float | None:
        """Until when to wait for queues that are expected; None: send now."""
        until_s: float | None = None
        for queue, answered_s in list(self._answered.items()):
            usual_s = self._usual_s(queue)
            at_s = answered_s + min(self._limit_s, _MARGIN * usual_s)
            if at_s <= now_s:  # it is not expected again before it has been quick once
                del self._answered[queue]
                self._pause_s[queue] = math.inf
            elif usual_s < math.inf:
                until_s = at_s if until_s is None else max(until_s, at_s)
        return until_s

    def _usual_s(self, queue: CommandQueue) -> float:
        return self._pause_s.get(queue, math.inf)
