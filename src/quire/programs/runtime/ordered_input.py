"""The messages of clients in their recorded order among all that reaches a restartable program.

A message waits in the mailbox until its turn. Owns the number of messages that have reached the
program; the messages themselves are recorded where they arrive. Belongs to the program's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.core.errors import MailboxClosed
from quire.programs.runtime.arrivals import ArrivalOrder, RecordedInput
from quire.programs.runtime.replay_log import MAX_ANSWERS
from quire.programs.services.mailbox import Mailbox, MailboxChannel


class InputOrder:
    """The order of one incarnation's messages. ``recorded``: that of the ones before, to which new
    messages are added."""

    def __init__(self, recorded: list[RecordedInput], arrivals: ArrivalOrder) -> None:
        self._recorded = recorded
        self._arrivals = arrivals
        self._num_come = 0
        self._waiting: asyncio.Task[None] | None = None

    def _next(self) -> RecordedInput:
        """The arrival of the next message, or of the end of messages."""
        if self._num_come >= MAX_ANSWERS:  # the record is full
            return RecordedInput()
        if self._num_come == len(self._recorded):
            self._recorded.append(RecordedInput())
        return self._recorded[self._num_come]

    async def turn(self) -> None:
        """Wait until the next message may reach the program."""
        await self._arrivals.turn(self._next())

    def may_come(self, otherwise: Callable[[], object]) -> bool:
        """Whether the next message may reach the program now; if not, ``otherwise`` is called on
        this loop when it may."""
        if self._arrivals.may_come(self._next()):
            return True
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_task(self.turn())
            self._waiting.add_done_callback(lambda task: self._has_turn(task, otherwise))
        return False

    def _has_turn(self, task: asyncio.Task[None], otherwise: Callable[[], object]) -> None:
        self._waiting = None
        if not task.cancelled():
            otherwise()

    def came(self) -> None:
        """Note that the next message, or the end of messages, has reached the program."""
        arrival = self._next()
        self._num_come += 1
        self._arrivals.came(arrival)

    def end(self) -> None:
        """End the incarnation: nobody waits for messages any more."""
        if self._waiting is not None:
            self._waiting.cancel()


class OrderedInput:
    """The end of ``channel`` from which the program reads."""

    def __init__(self, channel: MailboxChannel, order: InputOrder) -> None:
        self._channel = channel
        self._order = order
        self._one_reads = asyncio.Lock()

    async def receive(self) -> str:
        """See ``MailboxChannel.receive``."""
        async with self._one_reads:
            await self._order.turn()
            try:
                message = await self._channel.receive()
            except MailboxClosed:
                self._order.came()
                raise
            self._order.came()
            return message


class OrderedMailbox:
    """The ``ProgramMailbox`` of a native program."""

    def __init__(self, mailbox: Mailbox, order: InputOrder) -> None:
        self.to_client = mailbox.to_client
        self.to_program = OrderedInput(mailbox.to_program, order)
