"""Gives seats to decodes for which memory has room, in the order of ``seats``, and takes them back.

Owns what happens to a decode that gets or loses its seat. ``seats`` chooses which is next and which
makes way, ``admission`` estimates the room for a call, and ``pausing`` decides about its program.
"""

from __future__ import annotations

from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.state import EngineState
from quire.control.programs.program import Entry
from quire.control.programs.table import ProcessTable
from quire.control.scheduler.pausing.pausing import FamilyPausing
from quire.control.scheduler.waiting.admission import Admission
from quire.control.scheduler.waiting.backlog import Backlog


class Seating:
    """The seats of one engine. ``num_preemptions``: how often an open sequence was closed.
    ``is_short``: memory had no room for the next decode when free seats were given last."""

    def __init__(
        self,
        engine: EngineState,
        table: ProcessTable,
        backlog: Backlog,
        admission: Admission,
        pausing: FamilyPausing,
    ) -> None:
        self._engine = engine
        self._table = table
        self._backlog = backlog
        self._admission = admission
        self._pausing = pausing
        self.num_preemptions = 0
        self.is_short = False

    def choose(self) -> None:
        """Choose the decodes that may take part in this message: free seats go to those that are
        next, then running ones make way for any that is strictly better."""
        seats = self._backlog.seats
        self._pausing.review()
        if not self.give_free_seats():
            self._seat_the_oldest()
        for _ in range(seats.capacity):
            pair = self._exchange()
            if pair is None or pair[1].num_in_flight or not self.admits(pair[0], pair[1]):
                return
            self.displace(pair[1])
            self._give_seat(pair[0])

    def _exchange(self) -> tuple[Entry, Entry] | None:
        """The next pair (asking, seated) of which the first displaces the second, of programs that
        are let in."""
        while (pair := self._backlog.seats.exchange()) is not None:
            if self._pausing.lets_in(pair[0]):
                return pair
            self._pausing.pause(pair[0])
        return None

    def _give_seat(self, entry: Entry) -> None:
        self._pausing.begin(entry)
        self._backlog.give_seat(entry)

    def give_free_seats(self) -> bool:
        """Give free seats; return False if memory has no room for the next decode, which no other
        passes."""
        seats = self._backlog.seats
        self.is_short = False
        while seats.num_free and (entry := seats.candidate()) is not None:
            if not self._pausing.lets_in(entry):
                self._pausing.pause(entry)
                continue
            if not self.admits(entry):
                self.is_short = True
                return False
            self._give_seat(entry)
        return True

    def admits(self, entry: Entry, victim: Entry | None = None) -> bool:
        """Whether ``entry`` may begin, or begin in the place of ``victim``, as far as memory
        allows."""
        seats = self._backlog.seats
        if not self._pausing.lets_in(entry):
            return False
        if entry.program is self._table.oldest_active and not seats.num_of(entry.program):
            return True
        return self._admission.admits(entry, seats, victim)

    def _seat_the_oldest(self) -> None:
        """Seat one decode of the oldest program, which waits for no room: the program may claim the
        whole pool."""
        seats, oldest = self._backlog.seats, self._table.oldest_active
        if oldest is None or seats.num_of(oldest):
            return
        entry = seats.first_of(oldest)
        if entry is not None:
            self._give_seat(entry)

    def sit_down(self, entry: Entry) -> bool:
        """Return whether ``entry`` has a seat; one behind another command of its queue takes a free
        seat for which no other asks."""
        seats = self._backlog.seats
        if seats.has_seat(entry):
            return True
        if not seats.num_free or seats.num_asking or not self.admits(entry):
            return False
        seats.ask(entry)
        self._pausing.begin(entry)
        seats.give(entry)
        return True

    def displace(self, entry: Entry) -> None:
        """Take the seat of ``entry``, which no message in flight carries; it asks for one again."""
        run = entry.run
        if isinstance(run, DecodeRun) and run.is_open:
            self.preempt(run)
        else:
            self._backlog.take_seat(entry)

    def preempt(self, run: DecodeRun) -> None:
        """Unseat a run that has to make way."""
        self.unseat(run)
        run.entry.num_preemptions += 1
        run.entry.program.num_preemptions += 1
        self.num_preemptions += 1

    def unseat(self, run: DecodeRun) -> None:
        """Close the run's sequence, which no message in flight or in preparation carries; it goes
        on from its tokens when it has a seat again."""
        entry = run.entry
        self._engine.suspend(run)
        del self._engine.running[entry]
        self._engine.unfinished[entry] = None
        self._backlog.take_seat(entry)
