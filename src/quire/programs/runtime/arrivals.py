"""The order in which everything reaches one incarnation of a restartable program.

Replies of the engine, answers to questions and messages of clients come from different places. A
program that waits for several of them side by side goes on differently if they come in another
order, so a later incarnation receives them in the recorded one. Owns that order. Must not know what
arrives, nor how it is recorded. Belongs to the program's loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol


class Arrival(Protocol):
    """One answer or message of the record. ``rank``: its place among all answers and messages;
    None: it has not reached the program. ``num_heard``: how many replies had reached the program
    before it. ``num_acts``: how many commands the program had issued, and questions it had asked,
    by then."""

    rank: int | None
    num_heard: int
    num_acts: int


@dataclass(slots=True)
class RecordedInput:
    """The ``Arrival`` of a client's message, or of the end of its messages."""

    rank: int | None = None
    num_heard: int = 0
    num_acts: int = 0


class ArrivalOrder:
    """The arrivals of one incarnation. ``recorded``: those of the ones before, among
    ``num_replies`` replies of the engine. ``on_turn`` is called when the next recorded reply may be
    told, or when all of the record has arrived.

    A recorded arrival comes behind all that came before it, and not before the program has done
    what it had done by then. A new one follows all recorded ones.
    """

    def __init__(
        self,
        recorded: Iterable[Arrival] = (),
        num_replies: int = 0,
        on_turn: Callable[[], object] = lambda: None,
    ) -> None:
        ranked = [(one.rank, one) for one in recorded if one.rank is not None]
        ranked.sort(key=lambda ranked: ranked[0])
        self._coming = deque(one for _, one in ranked)
        """The recorded arrivals that have not come yet in this incarnation, in their order."""
        self._num_ranked = ranked[-1][0] + 1 if ranked else 0
        self._num_replies = num_replies
        self._on_turn = on_turn
        self._waiting: dict[int, asyncio.Future[None]] = {}
        """Of those that wait for their turn, by the arrival's identity."""
        self.num_heard = 0
        """How many replies come before an answer that comes now. A native program goes on with an
        answer at once, and with a reply in the next turn of its loop: there the replies of a turn
        that has not ended do not count."""
        self.num_acts = 0
        self._is_over = False

    def end(self) -> None:
        """End the incarnation because another one follows: what comes now is not recorded."""
        self._is_over = True

    @property
    def num_ranked(self) -> int:
        """How many answers and messages have been recorded. Another thread that finds it unchanged
        has read a record to which nothing was added meanwhile."""
        return self._num_ranked

    @property
    def is_replaying(self) -> bool:
        """Whether recorded arrivals have still to come."""
        return bool(self._coming) or self.num_heard < self._num_replies

    @property
    def next_reply_limit(self) -> int | None:
        """How many replies come before the next recorded answer; None: no such answer is left."""
        return self._coming[0].num_heard if self._coming else None

    def acted(self, num: int = 1) -> None:
        """Note that the program has issued ``num`` commands or asked ``num`` questions."""
        self.num_acts += num
        self._wake()

    def heard(self, num_heard: int) -> None:
        """Note how many replies have reached the program."""
        self.num_heard = num_heard
        self._wake()

    async def come(self, arrival: Arrival) -> None:
        """Wait for the turn of ``arrival``, which reaches the program when this returns. One whose
        wait is cancelled is waited for no more."""
        try:
            await self.turn(arrival)
        except asyncio.CancelledError:
            if arrival in self._coming:
                self._coming.remove(arrival)
                self._wake()
            raise
        self.came(arrival)

    async def turn(self, arrival: Arrival) -> None:
        """Wait until ``arrival`` may reach the program; ``came`` follows."""
        while not self.may_come(arrival):
            future = self._waiting[id(arrival)] = asyncio.get_running_loop().create_future()
            await future

    def may_come(self, arrival: Arrival) -> bool:
        if not self._coming or self._coming[0] is not arrival:
            return not self.is_replaying
        return arrival.num_heard <= self.num_heard and arrival.num_acts <= self.num_acts

    def came(self, arrival: Arrival) -> None:
        """Note that ``arrival`` has reached the program."""
        if self._coming and self._coming[0] is arrival:
            self._coming.popleft()
        elif arrival.rank is None and not self._is_over:
            arrival.num_heard, arrival.num_acts = self.num_heard, self.num_acts
            arrival.rank = self._num_ranked
            self._num_ranked += 1
        self._wake()

    def _wake(self) -> None:
        """Have what is next come if it may; behind the last recorded arrival, all."""
        if not self.is_replaying:
            waiting, self._waiting = self._waiting, {}
            for future in waiting.values():
                _resolve(future)
        elif self._coming and self.may_come(self._coming[0]):
            _resolve(self._waiting.pop(id(self._coming[0]), None))
            return
        self._on_turn()


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
