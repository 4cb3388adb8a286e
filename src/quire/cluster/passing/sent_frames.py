"""The frames of an attachment's client, in order, until a node has taken them.

A node that a program leaves reports how many frames of its connection it has taken; the others go
to the next node. Owns how many are kept for that. Must not know what the frames mean.
"""

from __future__ import annotations

import asyncio
from collections import deque

from quire.core.errors import EngineLost

_MAX_KEPT = 4 << 20
"""The most characters or bytes of sent frames that are kept. It is more than the buffers of a
connection hold, so a node that does not read has less than this before it."""


class SentFrames:
    """The frames of one connection to a node; after ``go_on``, those of the next connection."""

    def __init__(self, max_kept: int = _MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._frames: deque[str | bytes] = deque()
        self._size = 0
        self._num_sent = 0
        """How many of ``_frames`` have been sent, from the first one on."""
        self._num_forgotten = 0
        self._changed = asyncio.Condition()

    async def put(self, frame: str | bytes) -> None:
        """Add a frame once all earlier frames are sent."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._num_sent == len(self._frames))
            self._frames.append(frame)
            self._size += len(frame)
            self._changed.notify_all()

    async def next(self) -> str | bytes:
        """Return the next frame to send. It then counts as sent, and is kept."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._num_sent < len(self._frames))
            frame = self._frames[self._num_sent]
            self._num_sent += 1
            while self._size > self._max_kept and self._num_sent > 1:
                self._forget()
                self._num_forgotten += 1
            self._changed.notify_all()
        return frame

    def go_on(self, num_taken: int) -> None:
        """Go on with the next connection: the former node has taken ``num_taken`` frames, the
        others are to be sent again.

        Raises:
            EngineLost: one of the others is no longer kept.
        """
        num_kept = num_taken - self._num_forgotten
        if not 0 <= num_kept <= self._num_sent:
            raise EngineLost(
                f"the program has moved, and took {num_taken} frames: attach again, and send the "
                "others again"
            )
        for _ in range(num_kept):
            self._forget()
        self._num_sent = self._num_forgotten = 0

    def _forget(self) -> None:
        self._size -= len(self._frames.popleft())
        self._num_sent -= 1
