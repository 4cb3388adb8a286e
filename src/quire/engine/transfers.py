"""Transfers that messages have begun: copied between messages, one slice at a time.

Owns the remaining copies and their order, but not the blocks, which control leaves untouched until
a transfer ends. On a CPU both tiers are main memory and every core computes a message, so a
parallel copy would only slow it down; the time between an answer and the next message is free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from quire.core.batch import I32, SwapIn, SwapOut
from quire.core.batch_result import TransfersEnded
from quire.engine.kv_cache.pool import KVPool

SLICE_BYTES = 16 << 20
"""A few milliseconds of copying: the longest that a message waits for a slice."""


@dataclass(slots=True)
class _Copying:
    """The rest of one operation: ``copy(source, target)`` of whole blocks."""

    copy: Callable[[I32, I32], None]
    transfers: I32
    source: I32
    target: I32


class TransferQueue:
    """Transfers in order of their beginning."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._queue: deque[_Copying] = deque()
        self._num_blocks = max(1, SLICE_BYTES // pool.shape.bytes_per_block)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def begin(self, swap: SwapOut | SwapIn) -> None:
        pool, blocks, host_blocks = self._pool, swap.blocks, swap.host_blocks
        if isinstance(swap, SwapOut):
            self._queue.append(_Copying(pool.swap_out, swap.transfers, blocks, host_blocks))
        else:
            self._queue.append(_Copying(pool.swap_in, swap.transfers, host_blocks, blocks))

    def go_on(self) -> TransfersEnded | None:
        """Copy the next slice; None if nothing is left."""
        if not self._queue:
            return None
        copying, count = self._queue[0], self._num_blocks
        copying.copy(copying.source[:count], copying.target[:count])
        ended = TransfersEnded(transfers=copying.transfers[:count])
        copying.transfers = copying.transfers[count:]
        copying.source, copying.target = copying.source[count:], copying.target[count:]
        if not len(copying.transfers):
            self._queue.popleft()
        return ended
