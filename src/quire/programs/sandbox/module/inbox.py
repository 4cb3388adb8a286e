"""The client's messages for a compiled guest, and the guest's commands that wait for one."""

from __future__ import annotations

from collections import deque

from quire.core.errors import MailboxClosed
from quire.programs.sandbox.module.abi import GuestOp
from quire.programs.sandbox.module.events import RingEvent, failed


class ModuleInbox:
    """The messages and waiting commands. Each method returns the events for the guest that result,
    in order."""

    __slots__ = ("_is_closed", "_messages", "_num_read", "_receives")

    def __init__(self) -> None:
        self._messages: deque[str] = deque()
        self._receives: deque[int] = deque()
        self._is_closed = False
        self._num_read = 0

    @property
    def num_waiting(self) -> int:
        """Commands that wait for a message."""
        return len(self._receives)

    def receive(self, command: int) -> list[RingEvent]:
        self._receives.append(command)
        return self._passed()

    def put(self, text: str) -> list[RingEvent]:
        self._messages.append(text)
        return self._passed()

    def close(self) -> list[RingEvent]:
        """Note that the client sends no further messages."""
        self._is_closed = True
        return self._passed()

    def take_num_read(self) -> int:
        """The number of messages that the guest has received since the last call."""
        num_read, self._num_read = self._num_read, 0
        return num_read

    def _passed(self) -> list[RingEvent]:
        events = []
        while self._receives and (self._messages or self._is_closed):
            command = self._receives.popleft()
            if not self._messages:
                closed = MailboxClosed("the client has closed its side").record()
                events.append(failed(GuestOp.RECEIVE, command, closed))
                continue
            payload = self._messages.popleft().encode("utf-8", "replace")
            events.append(RingEvent(GuestOp.RECEIVE, command, payload))
            self._num_read += 1
        return events
