"""When the next batch may go to an encoder that is still at work on one.

A batch that waits in the instance keeps it busy between two, but who comes later cannot stand in
it, however urgent. So it is sent shortly before the running one should end. Owns a moving average
of the encoder's time for one token.
"""

from __future__ import annotations

_SMOOTHING = 0.2
_AHEAD_SHARE = 0.1
"""Of a batch's expected time that is left when the next one is sent: batches take not quite what is
expected of them."""
_AHEAD_S = 0.005
"""At least so long before, or the instance would wait for the way and for control."""


class BatchesAhead:
    """Of all instances of one encoder, which take equally long."""

    def __init__(self) -> None:
        self._token_s: float | None = None

    def observe(self, num_tokens: int, elapsed_s: float) -> None:
        token_s = elapsed_s / num_tokens
        if self._token_s is None:
            self._token_s = token_s
        else:
            self._token_s += _SMOOTHING * (token_s - self._token_s)

    def due_s(self, num_tokens: int, began_s: float) -> float:
        """When the next batch is due behind one of ``num_tokens`` that began at ``began_s``: at
        once, as long as nothing was measured."""
        if self._token_s is None:
            return began_s
        expected_s = self._token_s * num_tokens
        return began_s + max(0.0, expected_s - max(_AHEAD_S, _AHEAD_SHARE * expected_s))
