"""The messages between clients and a restartable program, so that a restart repeats none.

A restarted program sends its earlier messages again: these are not passed on to clients. It
receives the earlier messages of its clients again. Belongs to the edge's loop. Must not know why
a program is restarted.
"""

from __future__ import annotations

import asyncio

from quire.core.errors import MailboxClosed, MailboxFull, QuireError
from quire.programs.runtime.replay_log import ReplayLog, not_repeated
from quire.programs.runtime.running import RunningProgram
from quire.programs.services.children import ChildService, ChildState
from quire.programs.services.mailbox import MailboxLimits, SentMessage, check_message

_MAX_KEPT_CHARS = 8 << 20
_MAX_SENT = 1_000_000
"""The most messages that the program may have sent; a hash of each is kept."""
_MAX_CONNECTIONS = 1024
"""Connections whose frames are counted: those that were used last."""

_MAILBOX = MailboxLimits()
"""Limits of the messages that wait while the program is restarted."""


class Restarts:
    """The messages of one program, over all of its incarnations; ``log`` records the replies and
    answers that the node has given to it."""

    def __init__(self, log: ReplayLog) -> None:
        self.log = log
        self.children: ChildService | None = None
        """The program's children, once it has launched any: they keep running while it is
        restarted."""
        self.child_state = ChildState()
        """Its children. Those that came with it from another node are here before it asks for
        any."""
        self.frames: dict[str, int] = {}
        """The number of frames taken from each connection to the program, by the name that a router
        gave the connection."""
        self._sent: list[int] = []
        self._num_repeated = 0
        self._num_printed = 0
        self._num_reprinted = 0
        self._received: list[str] = []
        self._num_chars = 0
        self._num_given = 0
        """The number of recorded messages that the present incarnation has received."""
        self._input_closed = False
        self._feeding: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether there were more messages than are kept, so that the program cannot be
        restarted."""
        is_long = self._num_chars > _MAX_KEPT_CHARS or len(self._sent) >= _MAX_SENT
        return is_long or self.log.is_full

    @property
    def received(self) -> list[str]:
        """The messages that the program's clients have sent."""
        return self._received

    @property
    def is_input_closed(self) -> bool:
        return self._input_closed

    def take_over(
        self, received: list[str], frames: dict[str, int], *, is_input_closed: bool
    ) -> None:
        """Take over what clients had sent to the program on the node that it comes from.
        ``begin_again`` follows."""
        self._received, self._input_closed = received, is_input_closed
        self.frames = frames
        self._num_chars = sum(map(len, received))
        self.log.num_restarts -= 1  # a move does not count as a restart

    # -- from the program --------------------------------------------------------------------------

    def is_new(self, message: str) -> bool:
        """Whether clients have not received the message yet; ``note_sent`` marks it as received.

        Raises:
            ProgramTerminated: the first run sent another message at this place.
        """
        if self._num_repeated == len(self._sent):
            return True
        if self._sent[self._num_repeated] != hash(message):
            raise not_repeated(f"message {self._num_repeated + 1}")
        self._num_repeated += 1
        return False

    def note_sent(self, message: str) -> None:
        """Note that a new message is in the program's log. Not called earlier: a restart may
        interrupt the wait for readers, and the next run sends the message again."""
        if self.is_full:
            return  # it will not be restarted again
        self._sent.append(hash(message))
        self._num_repeated += 1

    def prints_again(self) -> bool:
        """Whether the first run has already logged this line."""
        if self._num_reprinted < self._num_printed:
            self._num_reprinted += 1
            return True
        self._num_printed += 1
        self._num_reprinted += 1
        return False

    # -- to the program ----------------------------------------------------------------------------

    def send(self, running: RunningProgram, message: str) -> SentMessage:
        """Send a client's message to the program and record it. While the program is restarted, the
        message is delivered after the recorded ones. A refused message is not recorded: the next
        run would receive it.

        Raises:
            MailboxFull, MailboxClosed, InvalidArgument: see ``ProgramHandle.send``.
        """
        if self._input_closed or running.state.ended:
            raise MailboxClosed("the client has closed its side, or the program has ended")
        if self._feeding is not None:
            self._check_kept(message)
            self._keep(message)
            return SentMessage.without_waiting()
        sent = running.send(message)
        if not self.is_full:
            self._keep(message)
        return sent

    def take_frame(self, connection: str) -> None:
        """Count a frame of ``connection``; the caller acts on the frame in the same turn."""
        self.frames[connection] = self.frames.pop(connection, 0) + 1
        if len(self.frames) > _MAX_CONNECTIONS:
            del self.frames[next(iter(self.frames))]

    def _keep(self, message: str) -> None:
        self._received.append(message)
        self._num_chars += len(message)

    def _check_kept(self, message: str) -> None:
        """Check a message that the program's mailbox receives later."""
        check_message(message, "a program that is being restarted", _MAILBOX)
        num_waiting = len(self._received) - self._num_given
        if self.is_full or num_waiting >= _MAILBOX.limit:
            raise MailboxFull(
                f"the program is being restarted, and {num_waiting} messages wait for it: send "
                "this one again when it has read them",
                limit=_MAILBOX.limit,
            )

    def close_input(self, running: RunningProgram) -> None:
        self._input_closed = True
        if self._feeding is None:
            running.close_input()

    def begin_again(self, running: RunningProgram) -> None:
        """Give the recorded messages of clients to a new incarnation."""
        self.stop()
        self.log.num_restarts += 1
        self._num_repeated = self._num_reprinted = self._num_given = 0
        self._feeding = asyncio.create_task(self._feed(running))

    async def _feed(self, running: RunningProgram) -> None:
        try:
            while self._num_given < len(self._received):
                message = self._received[self._num_given]
                self._num_given += 1
                await running.send(message)
        except QuireError:
            return  # the program has ended
        self._feeding = None
        if self._input_closed:
            running.close_input()

    def end(self) -> None:
        """End the children: the program has ended for good."""
        self.stop()
        if self.children is not None:
            self.children.end()
            return
        for child in self.child_state.children.values():  # it has asked for none here
            if not child.ended:
                child.cancel("its parent has ended")

    def stop(self) -> None:
        if self._feeding is not None:
            self._feeding.cancel()
            self._feeding = None
