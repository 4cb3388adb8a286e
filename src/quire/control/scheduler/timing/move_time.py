"""How long a block takes between two tiers.

Owns a moving average of what the engine measured while it copied.
"""

from __future__ import annotations

_SMOOTHING = 0.2


class MoveTime:
    """``block_s``: of one block, in either direction; None: not known yet."""

    def __init__(self) -> None:
        self.block_s: float | None = None

    def observe(self, elapsed_s: float, num_blocks: int) -> None:
        """Copying ``num_blocks`` took ``elapsed_s``; 0.0: the engine has not measured it."""
        if num_blocks < 1 or elapsed_s <= 0:
            return
        block_s = elapsed_s / num_blocks
        if self.block_s is None:
            self.block_s = block_s
        else:
            self.block_s += _SMOOTHING * (block_s - self.block_s)
