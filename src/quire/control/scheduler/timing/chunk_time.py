"""Bounds how many prompt tokens may be in a message next to running decodes.

Owns two moving figures of the engine: the time of one prompt token by itself, and what one adds to
a message with decodes. They are equal where the work of a message is the sum of its parts. A pass
of a GPU takes at least as long as it reads the weights, so the first tokens beside decodes add
nothing; the more a chunk exceeds these, the longer decodes wait for its other tokens. A long chunk
delays every decode that waits for a next token; a short one makes the prompt's own first token
late. ``engine_scheduler`` decides when the bound holds.
"""

from __future__ import annotations

from quire.control.engines.in_flight import InFlight
from quire.control.scheduler.timing.moving_line import MovingLine

_SMOOTHING = 0.2
_KEEP = 0.98
"""The factor by which earlier messages count less for the slope, at each new one."""
_MIN_OBSERVED_TOKENS = 32
"""A shorter chunk costs little beside the weights that every message reads."""

_MIN_CHUNK_TOKENS = 16
_LEAST_SHARE = 0.1
"""The least share of a mixed message's time that its prompt tokens are assumed to take."""

_FREE = 1.1
"""A message that takes fewer steps than this may have taken the least time of a pass."""

_COMPUTING = 1.5
"""A message without decodes that takes at least so many steps takes more than the least time of a
pass."""

_NEAR_LIMIT, _SHRINKING = 0.9, 0.98
"""A chunk near the limit that has delayed no decode could have been longer: the time of a token is
then taken to be a little less, until a chunk has delayed decodes."""


class ChunkTime:
    """The time of chunks. ``chunk_steps``: how many times as long as the decodes' own step a chunk
    may take by itself."""

    def __init__(self, chunk_steps: float) -> None:
        self._chunk_steps = chunk_steps
        self._token_s: float | None = None
        self._added_s: float | None = None
        self._line = MovingLine(_KEEP)

    @property
    def token_s(self) -> float | None:
        """The time of one prompt token by itself in seconds; None: not known yet."""
        return self._token_s

    def observe(
        self, elapsed_s: float, num_tokens: int, step_s: float | None, *, has_decodes: bool
    ) -> None:
        """Note that a message with ``num_tokens`` prompt tokens took ``elapsed_s``. ``step_s``: the
        time of a step of decodes alone, None if it is not known yet; ``has_decodes``: a step was
        part of the message."""
        if num_tokens < _MIN_OBSERVED_TOKENS:
            return
        if step_s is None:
            self._token_s = _smoothed(self._token_s, elapsed_s / num_tokens)
        elif has_decodes:
            self._observe_beside(elapsed_s, num_tokens, step_s)
        elif elapsed_s >= _COMPUTING * step_s:
            self._token_s = _smoothed(self._token_s, elapsed_s / num_tokens)
        else:
            self._note_most(elapsed_s / num_tokens)

    def _observe_beside(self, elapsed_s: float, num_tokens: int, step_s: float) -> None:
        added_s = max(elapsed_s - step_s, _LEAST_SHARE * elapsed_s) / num_tokens
        self._added_s = _smoothed(self._added_s, added_s)
        if elapsed_s >= _FREE * step_s:
            self._line.observe(num_tokens, elapsed_s)
            self._token_s = _smoothed(self._token_s, self._slope_s(step_s) or added_s)
            return
        limit = self.limit(step_s)
        if self._token_s is None:
            self._token_s = added_s
        elif limit is not None and num_tokens >= _NEAR_LIMIT * limit:
            self._token_s *= _SHRINKING
        self._note_most(elapsed_s / num_tokens)

    def _slope_s(self, step_s: float) -> float | None:
        """What one token more has added to messages with decodes: at least what each of them has
        added, at most its share of the whole message."""
        line = self._line
        slope_s = line.slope_s
        if slope_s is None:
            return None
        most_s = line.mean_s / line.mean_size
        return min(max(slope_s, most_s - step_s / line.mean_size), most_s)

    def _note_most(self, most_s: float) -> None:
        """Note that a token takes no longer than ``most_s`` by itself."""
        self._token_s = most_s if self._token_s is None else min(self._token_s, most_s)

    def expected_s(self, message: InFlight, step_s: float | None) -> float | None:
        """How long ``message`` should take; ``None`` as long as nothing like it was measured."""
        if self._token_s is None or (message.num_advanced and step_s is None):
            return None
        num_tokens = sum(part.num_tokens for part in message.parts)
        if not message.num_advanced:
            return num_tokens * self._token_s
        added_s = self._token_s if self._added_s is None else self._added_s
        return num_tokens * added_s + (step_s or 0.0)

    def within(self, time_s: float) -> int | None:
        """Prompt tokens that take ``time_s``; ``None``: their time is not known yet."""
        return max(_MIN_CHUNK_TOKENS, int(time_s / self._token_s)) if self._token_s else None

    def limit(self, step_s: float | None) -> int | None:
        """Prompt tokens for a message whose decodes alone take ``step_s``; ``None`` for no bound,
        because one of the two times is not known yet."""
        if not self._token_s or step_s is None:
            return None
        return max(_MIN_CHUNK_TOKENS, int(self._chunk_steps * step_s / self._token_s))


def _smoothed(mean: float | None, value: float) -> float:
    return value if mean is None else mean + _SMOOTHING * (value - mean)
