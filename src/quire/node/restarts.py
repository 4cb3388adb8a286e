"""What clients and a restartable program have told each other, so that neither hears it twice.

A program that begins again sends what it has sent before: those messages are not passed on again,
and what its client had sent is given to it again. Belongs to the edge's loop. Must not know why a
program begins again.
"""

from __future__ import annotations

import asyncio

from quire.core.errors import MailboxClosed, QuireError
from quire.programs.runtime.replay_log import ReplayLog, not_repeated
from quire.programs.runtime.running import RunningProgram
from quire.programs.services.children import ChildService

_MAX_KEPT_CHARS = 8 << 20
_MAX_SENT = 1_000_000
"""Messages of the program, of which a hash each is kept."""


class Restarts:
    """Of one program, over all of its incarnations; ``log`` is what the node has told it."""

    def __init__(self, log: ReplayLog) -> None:
        self.log = log
        self.children: ChildService | None = None
        """Those that the program has launched, once it has: they live on while it begins again."""
        self._sent: list[int] = []
        self._num_repeated = 0
        self._num_printed = 0
        self._num_reprinted = 0
        self._received: list[str] = []
        self._num_chars = 0
        self._input_closed = False
        self._feeding: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """There was more than is kept: the program cannot begin again."""
        is_long = self._num_chars > _MAX_KEPT_CHARS or len(self._sent) >= _MAX_SENT
        return is_long or self.log.is_full

    # -- from the program --------------------------------------------------------------------------

    def is_new(self, message: str) -> bool:
        """Whether clients have not had it; ``note_sent`` says when they have.

        Raises:
            ProgramTerminated: another message stood in this place the first time.
        """
        if self._num_repeated == len(self._sent):
            return True
        if self._sent[self._num_repeated] != hash(message):
            raise not_repeated(f"message {self._num_repeated + 1}")
        self._num_repeated += 1
        return False

    def note_sent(self, message: str) -> None:
        """A new message stands in the program's log: not before, for a wait for its readers may be
        cut off by another beginning, which sends it again."""
        if self.is_full:
            return  # there is no other beginning
        self._sent.append(hash(message))
        self._num_repeated += 1

    def prints_again(self) -> bool:
        """Whether a line of its log stood there before."""
        if self._num_reprinted < self._num_printed:
            self._num_reprinted += 1
            return True
        self._num_printed += 1
        self._num_reprinted += 1
        return False

    # -- to the program ----------------------------------------------------------------------------

    async def send(self, running: RunningProgram, message: str) -> None:
        """See ``ProgramHandle.send``."""
        if self.note(running, message):
            await running.send(message)

    def note(self, running: RunningProgram, message: str) -> bool:
        """A client sends this; false: it is given to the program behind what it hears again."""
        if self._input_closed or running.state.ended:
            raise MailboxClosed("the client has closed its side, or the program has ended")
        if not self.is_full:
            self._received.append(message)
            self._num_chars += len(message)
        return self._feeding is None

    def close_input(self, running: RunningProgram) -> None:
        self._input_closed = True
        if self._feeding is None:
            running.close_input()

    def begin_again(self, running: RunningProgram) -> None:
        """A new incarnation: give it what the client has sent."""
        self.stop()
        self.log.num_restarts += 1
        self._num_repeated = self._num_reprinted = 0
        self._feeding = asyncio.create_task(self._feed(running))

    async def _feed(self, running: RunningProgram) -> None:
        given = 0
        try:
            while given < len(self._received):
                message = self._received[given]
                given += 1
                await running.send(message)
        except QuireError:
            return  # it has ended
        self._feeding = None
        if self._input_closed:
            running.close_input()

    def end(self) -> None:
        """The program has ended, for good."""
        self.stop()
        if self.children is not None:
            self.children.end()

    def stop(self) -> None:
        if self._feeding is not None:
            self._feeding.cancel()
            self._feeding = None
