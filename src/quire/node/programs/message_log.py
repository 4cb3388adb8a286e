"""The mailbox messages that a program has sent: kept within limits, read by any number of clients.

Lives on the edge's loop. Owns the limits: when the log is full, the oldest message is dropped. If
an attached client has not read that message yet, the program waits for it, up to a time limit; then
the client is detached with an error. Must not know what runs the program.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec

from quire.core.errors import MailboxFull, QuireError
from quire.node.loops import Bell


class MailboxMessage(msgspec.Struct, frozen=True):
    """``sequence`` counts the program's messages from 1; a gap shows dropped messages."""

    sequence: int
    text: str


@dataclass(frozen=True, slots=True)
class LogLimits:
    """``stall_s``: how long a full log waits for an attached client that does not read."""

    max_messages: int = 1024
    max_bytes: int = 8 << 20
    stall_s: float = 30.0


class MessageLog:
    """One writer, any number of ``MessageReader``s, all on one loop."""

    def __init__(self, limits: LogLimits | None = None) -> None:
        self._limits = limits or LogLimits()
        self._kept: deque[MailboxMessage] = deque()
        self._num_bytes = 0
        self._last = 0
        self._closed = False
        self._readers: set[MessageReader] = set()
        self._changed = Bell()

    @property
    def num_messages(self) -> int:
        """All messages that were ever sent."""
        return self._last

    @property
    def num_dropped(self) -> int:
        """Messages that are no longer kept."""
        return self._last - len(self._kept)

    @property
    def num_bytes(self) -> int:
        """Bytes of the kept messages, as UTF-8."""
        return self._num_bytes

    def after(self, number: int) -> list[str]:
        """Return the kept messages with a sequence number above ``number``."""
        return [message.text for message in self._kept if message.sequence > number]

    def attach(self, after: int = 0) -> MessageReader:
        """A reader of the kept messages with a sequence number above ``after``."""
        reader = MessageReader(self, after)
        if not self._closed:
            self._readers.add(reader)
        return reader

    def offer(self, text: str) -> bool:
        """Append, after making room. False: an attached client has not read the message that must
        be dropped."""
        num_bytes = _size(text)
        while self._kept and not self._fits(num_bytes):
            if self._behind(self._kept[0]):
                return False
            self._forget_oldest()
        self._last += 1
        self._kept.append(MailboxMessage(self._last, text))
        self._num_bytes += num_bytes
        self._changed.ring()
        return True

    async def put(self, text: str) -> None:
        """Like ``offer``, but waits for slow readers; one that takes too long is detached."""
        while not self.offer(text):
            await self._wait_for_readers(self._kept[0])

    def close(self) -> None:
        """Close the log: no further message follows; the kept ones can still be read."""
        self._closed = True
        self._readers.clear()
        self._changed.ring()

    def _fits(self, num_bytes: int) -> bool:
        return (
            len(self._kept) < self._limits.max_messages
            and self._num_bytes + num_bytes <= self._limits.max_bytes
        )

    def _forget_oldest(self) -> None:
        self._num_bytes -= _size(self._kept.popleft().text)

    async def _wait_for_readers(self, oldest: MailboxMessage) -> None:
        try:
            async with asyncio.timeout(self._limits.stall_s):
                while self._behind(oldest):
                    await self._changed.wait()
        except TimeoutError:
            for reader in self._behind(oldest):
                self.detach(
                    reader,
                    MailboxFull(
                        f"this client has not read message {oldest.sequence} for "
                        f"{self._limits.stall_s:g} s and is detached: read faster, or attach again"
                    ),
                )

    def _behind(self, oldest: MailboxMessage) -> list[MessageReader]:
        return [one for one in self._readers if one.position < oldest.sequence]

    # -- for readers -------------------------------------------------------------------------------

    def detach(self, reader: MessageReader, error: QuireError | None = None) -> None:
        reader.end(error)
        self._readers.discard(reader)
        self._changed.ring()

    async def next_after(self, reader: MessageReader) -> MailboxMessage | None:
        """The next kept message after the reader's position; ``None`` at the end."""
        while not reader.ended:
            index = max(0, reader.position - self.num_dropped)
            if index < len(self._kept):
                self._changed.ring()
                return self._kept[index]
            if self._closed:
                break
            await self._changed.wait()
        return None


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


class MessageReader:
    """One client's reader of a program's messages: iterate, and ``close`` when done."""

    def __init__(self, log: MessageLog, after: int) -> None:
        self._log = log
        self._error: QuireError | None = None
        self.position = after
        self.ended = False

    def __aiter__(self) -> AsyncIterator[MailboxMessage]:
        return self

    async def __anext__(self) -> MailboxMessage:
        """Raise ``MailboxFull`` once this client has been detached for reading too slowly."""
        message = await self._log.next_after(self)
        if self._error is not None:
            raise self._error
        if message is None:
            raise StopAsyncIteration
        self.position = message.sequence
        return message

    def close(self) -> None:
        """Detach from the log; a pending iteration ends. Idempotent."""
        self._log.detach(self)

    def end(self, error: QuireError | None) -> None:
        """End the iteration, with ``error`` if it is not ``None``. Called by the log."""
        if not self.ended:
            self.ended = True
            self._error = error
