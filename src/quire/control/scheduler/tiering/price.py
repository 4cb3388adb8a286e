"""Decides whether a page should be moved or computed again.

Owns the rule: a page is worth moving if

    chance * time to compute it  >  time to move it out + chance * time to move it in

where the chance is that of the page being needed again. The times are those that the engine has
measured. Until it has measured a move, a move counts as free.
"""

from __future__ import annotations

from quire.control.scheduler.timing.chunk_time import ChunkTime
from quire.control.scheduler.timing.move_time import MoveTime


class MovePrice:
    """The price of moves to one tier and back."""

    def __init__(
        self, chunk_time: ChunkTime, page_size: int, out_time: MoveTime, back_time: MoveTime
    ) -> None:
        self._chunk_time = chunk_time
        self._page_size = page_size
        self._out_time = out_time
        self._back_time = back_time

    def is_worth_it(self, chance: float) -> bool:
        """Whether moving is cheaper; ``chance``: that the page is needed again."""
        token_s, out_s = self._chunk_time.token_s, self._out_time.block_s
        if token_s is None or out_s is None:
            return chance > 0
        back_s = self._back_time.block_s
        back_s = out_s if back_s is None else back_s
        return chance * (token_s * self._page_size - back_s) > out_s
