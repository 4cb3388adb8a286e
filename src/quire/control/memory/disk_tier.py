"""The disk tier of one engine: a lower tier that may be out of use.

Owns whether contents may go there. ``tiering`` decides that, and for how long; what has been
written can be read in any case.
"""

from __future__ import annotations

from quire.control.memory.content import Content
from quire.control.memory.lower_tier import LowerTier
from quire.control.memory.transfers import Tier


class DiskTier(LowerTier):
    """The disk tier. ``is_open``: writes are expected to succeed. ``is_worth_it``: to write a block
    and read it again is expected to cost less than to compute it again."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(Tier.DISK, num_blocks)
        self.is_open = True
        self.is_worth_it = True

    @property
    def num_open(self) -> int:
        """Blocks that are available to contents that cannot be computed again."""
        return self.num_available if self.is_open and self.pool.size else 0

    def takes(self, content: Content) -> bool:
        """Whether ``content``, which a program holds, may be moved here at all."""
        if not self.is_open or not self.pool.size:
            return False
        return self.is_worth_it or not (content.canonical and content.tokens)

    def place_for(self, content: Content) -> Content | None:
        """What ``content`` may replace if no block is free: contents without a holder; if it cannot
        be computed again, also contents that can be."""
        is_known = content.canonical and content.tokens
        return self.first_cached() if is_known else self.victim()
