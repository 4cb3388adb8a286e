"""When the next batch may go to an encoder that is still running one.

A batch that waits in the instance keeps it busy between two batches, but a request that arrives
later cannot join it, however urgent it is. So the next batch is sent shortly before the running one
is expected to end. Owns a moving average of the encoder's time for one token.
"""

from __future__ import annotations

_SMOOTHING = 0.2
_AHEAD_SHARE = 0.1
"""The share of a batch's expected time that is left when the next one is sent, because the expected
time is not exact."""
_AHEAD_S = 0.005
"""The next batch is sent at least this long before, to cover the time of control and of sending."""


class BatchesAhead:
    """For all instances of one encoder, which take equally long."""

    def __init__(self) -> None:
        self._token_s: float | None = None

    def observe(self, num_tokens: int, elapsed_s: float) -> None:
        token_s = elapsed_s / num_tokens
        if self._token_s is None:
            self._token_s = token_s
        else:
            self._token_s += _SMOOTHING * (token_s - self._token_s)

    def due_s(self, num_tokens: int, began_s: float) -> float:
        """When the batch after one of ``num_tokens`` that began at ``began_s`` is due. It is due at
        once if no batch was measured yet."""
        if self._token_s is None:
            return began_s
        expected_s = self._token_s * num_tokens
        return began_s + max(0.0, expected_s - max(_AHEAD_S, _AHEAD_SHARE * expected_s))
