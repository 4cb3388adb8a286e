"""A compiled guest's messages to its client, and its sends that wait for room."""

from __future__ import annotations

from quire.core.errors import (
    ErrorRecord,
    InvalidArgument,
    MailboxClosed,
    MailboxFull,
    QuireError,
)
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.module.abi import GuestOp, RingCommand
from quire.programs.sandbox.module.events import RingEvent, failed
from quire.programs.sandbox.module.memory import GuestMemory


class ModuleOutbox:
    """The unread messages and waiting sends, within the bounds of ``launch``. Each method returns
    the events for the guest that result, in order."""

    __slots__ = ("_client_gone", "_launch", "_num_untaken", "_waiting")

    def __init__(self, launch: m.GuestLaunch) -> None:
        self._launch = launch
        self._num_untaken = 0
        """Messages that the client has not read."""
        self._waiting: list[int] = []
        """Sends of these that are answered when there is room; id 0 wants no answer."""
        self._client_gone: ErrorRecord | None = None

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def send(
        self, entry: RingCommand, memory: GuestMemory
    ) -> tuple[m.Send | None, list[RingEvent]]:
        """Take a message of the guest; return it, or None if it is refused, and the events."""
        error: QuireError | None = None
        if self._client_gone is not None:
            error = MailboxClosed(self._client_gone.message)
        elif self._num_untaken >= self._launch.mailbox_limit:
            error = MailboxFull(
                f"{self._num_untaken} messages wait for the client to read: send later"
            )
        elif entry.length > self._launch.max_message_bytes:
            most = self._launch.max_message_bytes
            error = InvalidArgument(
                f"a message of {entry.length} bytes; at most {most} are allowed: send it in parts"
            )
        if error is not None:
            return None, [failed(GuestOp.SEND, entry.id, error.record())]
        text = memory.text(entry.address, entry.length)
        self._num_untaken += 1
        self._waiting.append(entry.id)
        return m.Send(text), self._passed()

    def taken(self, count: int) -> list[RingEvent]:
        """Note that the client has read ``count`` messages."""
        self._num_untaken -= count
        return self._passed()

    def close(self, error: ErrorRecord) -> list[RingEvent]:
        """Note that the client reads no further messages."""
        self._client_gone = error
        waiting, self._waiting = self._waiting, []
        return [failed(GuestOp.SEND, command, error) for command in waiting if command]

    def _passed(self) -> list[RingEvent]:
        """Answers for all waiting sends, oldest first, if there is room."""
        if not self._waiting or self._num_untaken >= self._launch.mailbox_capacity:
            return []
        waiting, self._waiting = self._waiting, []
        return [RingEvent(GuestOp.SEND, command) for command in waiting if command]
