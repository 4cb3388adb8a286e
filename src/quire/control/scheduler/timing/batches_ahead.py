"""Decides when the next batch may go to an encoder that is still running one.

A batch that waits in the instance keeps it busy between two batches, but a request that arrives
later cannot join it, however urgent it is. So the next batch is sent shortly before the running one
is expected to end.
"""

from __future__ import annotations

_AHEAD_SHARE = 0.1
"""The share of a batch's expected time that is left when the next one is sent, because the expected
time is not exact."""
_AHEAD_S = 0.005
"""The next batch is sent at least this long before, to cover the time of control and of sending."""


def next_due_s(began_s: float, expected_s: float | None) -> float:
    """When the batch after one that began at ``began_s`` is due, if that one should take
    ``expected_s``. At once if nothing is known (None)."""
    if expected_s is None:
        return began_s
    return began_s + max(0.0, expected_s - max(_AHEAD_S, _AHEAD_SHARE * expected_s))
