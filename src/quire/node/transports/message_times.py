"""Measures how long an engine takes for a message, and decides after which time it hangs.

Learns from earlier messages. Pure bookkeeping: times are given. Must not know what is in a message.
"""

from __future__ import annotations

from collections import deque

_FACTOR = 20.0
"""The factor by which a message may take longer than the longest one so far: its contents differ,
and the machine may be busy with other work."""

_NUM_LEARNT = 64
"""Messages after which the times are used: the first ones compile what later ones use."""

_MAX_WAITING = 1024


class MessageTimeLimit:
    """``least_s`` and ``most_s``: bounds of the limit; it is ``most_s`` until enough is known."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s = min(least_s, most_s)
        self._most_s = most_s
        self._sent: deque[float] = deque(maxlen=_MAX_WAITING)
        self._num_answered = 0
        self._longest_s = 0.0

    @property
    def limit_s(self) -> float:
        """A message that runs for longer than this hangs."""
        if self._num_answered < _NUM_LEARNT:
            return self._most_s
        return min(max(self._least_s, _FACTOR * self._longest_s), self._most_s)

    def sent(self, now_s: float) -> None:
        self._sent.append(now_s)

    def answered(self, now_s: float) -> None:
        """Note that the oldest message that was sent is answered. It may have waited behind another
        one, which makes its time longer, never shorter."""
        if self._sent:
            self._longest_s = max(self._longest_s, now_s - self._sent.popleft())
            self._num_answered += 1
