"""Where in a window of shared memory the next piece goes, and what must be read before."""

from __future__ import annotations

from collections import deque

_ALIGNMENT = 64


class Ring:
    """Pieces in ``num_bytes`` of memory, one behind the other and round again. Places are counted
    without end; where a piece would not fit behind the last one, it goes to the beginning."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._next = 0
        self._spans: deque[tuple[int, int]] = deque()

    def place(self, size: int, num_sent: int) -> tuple[int, int]:
        """Offset of a piece of ``size``, at most the ring's, after which ``num_sent`` bytes are
        sent; and how many of them must be read before its memory is written."""
        left = self._num_bytes - self._next % self._num_bytes
        start = self._next if size <= left else self._next + left
        num_read = 0
        while self._spans and self._spans[0][0] < start + size - self._num_bytes:
            num_read = self._spans.popleft()[1]
        self._spans.append((start, num_sent))
        self._next = start + -(-size // _ALIGNMENT) * _ALIGNMENT
        return start % self._num_bytes, num_read
