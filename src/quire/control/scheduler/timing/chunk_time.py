"""Bounds how many prompt tokens may be in a message next to running decodes.

Owns a moving average of the engine's time for one prompt token. A long chunk delays every decode
that waits for a next token; a short one makes the prompt's own first token late.
``engine_scheduler`` decides when the bound holds.
"""

from __future__ import annotations

from quire.control.engines.in_flight import InFlight

_SMOOTHING = 0.2
_MIN_OBSERVED_TOKENS = 32
"""A shorter chunk costs little beside the weights that every message reads."""

_MIN_CHUNK_TOKENS = 16
_LEAST_SHARE = 0.1
"""The least share of a mixed message's time that its prompt tokens are assumed to take."""


class ChunkTime:
    """The time of chunks. ``chunk_steps``: how many times as long as the decodes' own step a chunk
    may take."""

    def __init__(self, chunk_steps: float) -> None:
        self._chunk_steps = chunk_steps
        self._token_s: float | None = None

    @property
    def token_s(self) -> float | None:
        """The time of one prompt token in seconds; None: not known yet."""
        return self._token_s

    def observe(self, elapsed_s: float, num_tokens: int, step_s: float) -> None:
        """Note that a message with ``num_tokens`` prompt tokens took ``elapsed_s``; ``step_s`` of
        that would have passed without them (0 without decodes)."""
        if num_tokens < _MIN_OBSERVED_TOKENS:
            return
        token_s = max(elapsed_s - step_s, _LEAST_SHARE * elapsed_s) / num_tokens
        if self._token_s is None:
            self._token_s = token_s
        else:
            self._token_s += _SMOOTHING * (token_s - self._token_s)

    def expected_s(self, message: InFlight, step_s: float | None) -> float | None:
        """How long ``message`` should take; ``None`` as long as nothing like it was measured."""
        if self._token_s is None or (message.num_advanced and step_s is None):
            return None
        num_tokens = sum(part.num_tokens for part in message.parts)
        return num_tokens * self._token_s + (step_s or 0.0 if message.num_advanced else 0.0)

    def within(self, time_s: float) -> int | None:
        """Prompt tokens that take ``time_s``; ``None``: their time is not known yet."""
        return max(_MIN_CHUNK_TOKENS, int(time_s / self._token_s)) if self._token_s else None

    def limit(self, step_s: float | None) -> int | None:
        """Prompt tokens for a message whose decodes alone take ``step_s``; ``None`` for no bound,
        because one of the two times is not known yet."""
        if not self._token_s or step_s is None:
            return None
        return max(_MIN_CHUNK_TOKENS, int(self._chunk_steps * step_s / self._token_s))
