"""Measures how long a block takes between two tiers.

Owns moving averages of what the engine measured while it copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.control.memory.transfers import Tier, Transfer

_SMOOTHING = 0.2


class MoveTime:
    """The time of one kind of move. ``block_s``: of one block; None: not known yet."""

    def __init__(self) -> None:
        self.block_s: float | None = None

    def observe(self, elapsed_s: float, num_blocks: int) -> None:
        """Note that copying ``num_blocks`` took ``elapsed_s``; 0.0: the engine has not measured
        it."""
        if num_blocks < 1 or elapsed_s <= 0:
            return
        block_s = elapsed_s / num_blocks
        if self.block_s is None:
            self.block_s = block_s
        else:
            self.block_s += _SMOOTHING * (block_s - self.block_s)

    def forget(self) -> None:
        """Forget what was measured, which may not hold any more."""
        self.block_s = None


class MoveTimes:
    """The times of one engine: between device and host in either direction, to the disk and from
    it."""

    def __init__(self) -> None:
        self.host = MoveTime()
        self.write = MoveTime()
        self.read = MoveTime()

    def observe(self, elapsed_s: float, ended: Sequence[Transfer]) -> None:
        """Note that transfers of one direction have ended; copying took ``elapsed_s``."""
        if not ended or any(transfer.has_failed for transfer in ended):
            return
        if ended[0].target.tier is Tier.DISK:
            time = self.write
        else:
            time = self.read if ended[0].source.tier is Tier.DISK else self.host
        time.observe(elapsed_s, len(ended))
