"""Decides whether an encoder's batch is sent with room left in it while others wait.

A batch that is filled with the next sequences ends later, also for programs that wait only for
sequences already in it. A short batch ends earlier for them, and all others lose the fixed time of
one more batch. Owns the time that may be lost so: a share of what batches have taken, so that an
encoder that is always busy still does nearly as much.
"""

from __future__ import annotations

from quire.control.scheduler.timing.encode_time import EncodeTime

MAX_SHARE = 0.05
"""The share of the time of all batches that the fixed time of short ones may take."""
_MAX_SAVED = 4.0
"""The number of short batches that may follow one another after a time without any."""


class ShortBatches:
    """The short batches of all instances of one encoder. ``time``: what its batches take; the
    caller observes."""

    def __init__(self, time: EncodeTime) -> None:
        self._time = time
        self._saved_s = 0.0

    def earn(self, elapsed_s: float) -> None:
        """Add the share of a batch that took ``elapsed_s``."""
        most_s = _MAX_SAVED * self._time.batch_s
        self._saved_s = min(most_s, self._saved_s + MAX_SHARE * elapsed_s)

    def may_go(self) -> bool:
        """Whether the time for one more batch was earned, if a short one is worth it."""
        return self._time.knows_both and self._saved_s >= self._time.batch_s

    def is_worth(self, num_completed: int, num_more_tokens: int, num_waiting: int) -> bool:
        """Whether a short batch gains more than it loses. ``num_completed``: programs that have all
        that they wait for in the batch; ``num_more_tokens``: what would fill it; ``num_waiting``:
        programs that wait."""
        earlier_s = (self._time.token_s or 0.0) * num_more_tokens
        return num_completed * earlier_s > num_waiting * self._time.batch_s

    def spend(self) -> None:
        """Count a short batch that is sent."""
        self._saved_s -= self._time.batch_s
