"""The commands that wait on one engine, and for what: a message, a seat, memory, another command.

Owns where each waiting command is kept. It follows what has changed since its last ``sync``
(queues, ends, unlocked pages, ranks), so that a message costs nothing for commands that wait on.
The planner chooses what goes into a message.

``work``    may go into the next message: fine-tier commands, decodes that have a seat.
``seats``   decodes, with a seat or asking for one.
``paused``  decodes of programs that are paused between two calls (``scheduler.pausing``).
``claims``  found no memory. They go first in the next message, before any decode, so that their
            claims can be met by preemption.
held up     wait for another command to let go of a page that they append to or copy.
parked      of spare queues, while the engine has anything else to do (``spare``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quire.control.engines.state import EngineState
from quire.control.memory.pages import Page
from quire.control.programs.program import CommandQueue, Entry
from quire.control.programs.states import CommandState
from quire.control.scheduler.order.fair_order import FairOrder
from quire.control.scheduler.order.fairness import FairShare
from quire.control.scheduler.order.ranking import Ranking
from quire.control.scheduler.pausing.gate import ProgramGate
from quire.control.scheduler.waiting.seats import Seats
from quire.core.commands import Decode
from quire.core.ids import ProgramId

_QUEUED = CommandState.QUEUED


def needs_seat(entry: Entry) -> bool:
    """Whether ``entry`` is a decode that samples."""
    command = entry.command
    return isinstance(command, Decode) and command.stop.max_tokens > 0


class Backlog:
    """The waiting commands of one engine. ``sync`` comes before everything else that an event leads
    to, so that the policy is notified of what happened at that time."""

    def __init__(
        self, engine: EngineState, share: FairShare, ranking: Ranking, gate: ProgramGate
    ) -> None:
        self._engine = engine
        self._ranking = ranking
        self._gate = gate
        self.paused = FairOrder(share)
        self.work = FairOrder(share, staged=ranking.is_staged)
        self.claims = FairOrder(share)
        self.seats = Seats(engine.info.pool.max_sequences, share, staged=ranking.is_staged)
        self._claims_of: dict[ProgramId, dict[Entry, None]] = {}
        self._held_up: dict[Entry, Page] = {}
        self._held_by: dict[Page, dict[Entry, None]] = {}
        self._heads: dict[CommandQueue, Entry] = {}
        self.parked: dict[Entry, None] = {}
        self.spare: dict[Entry, None] = {}
        """Commands of spare queues that were let in among the others."""

    # -- following what changes ------------------------------------------------------------------

    def sync(self) -> None:
        """Take in what has happened on the engine."""
        engine = self._engine
        if engine.ended:
            for entry in engine.take_ended():
                self._end(entry)
        if engine.ready.has_changed:
            for queue in engine.ready.take_changed():
                self._look_at(queue)
        if engine.unlocked:
            self._wake(engine.take_unlocked())
        if self.parked or self.spare:
            self._follow_priorities()
        if self._ranking.changed:
            self._rank_anew()

    def _follow_priorities(self) -> None:
        """Put commands whose queue is no longer spare with the others for good."""
        for entry in [entry for entry in self.spare if not entry.queue.is_spare]:
            del self.spare[entry]
        for entry in [entry for entry in self.parked if not entry.queue.is_spare]:
            del self.parked[entry]
            self.place(entry)

    def _end(self, entry: Entry) -> None:
        self._take_out(entry)
        self.seats.discard(entry)
        if self._heads.get(entry.queue) is entry:
            del self._heads[entry.queue]
        self._forget_spare(entry)
        self._gate.ended(entry)
        self._ranking.ended(entry)

    def _look_at(self, queue: CommandQueue) -> None:
        """Examine ``queue``: its next command may have changed, or may no longer wait."""
        known = self._heads.get(queue)
        head = queue.next_entry if queue in self._engine.ready else None
        if head is known:
            return
        if known is not None:
            del self._heads[queue]
            if known.run is None:
                self._forget_spare(known)
            if known.state is _QUEUED:
                self._take_out(known)
                self.seats.discard(known)
        if head is not None:
            self._heads[queue] = head
            if queue.is_spare:
                self.parked[head] = None
            else:
                self.place(head)

    def _wake(self, unlocked: Iterable[Page]) -> None:
        """Let commands go on that waited for ``unlocked`` pages, to which no command appends any
        more."""
        if not self._held_by:  # the usual case
            return
        for page in unlocked:
            for entry in self._held_by.pop(page, ()):
                del self._held_up[entry]
                self.place(entry)

    def _rank_anew(self) -> None:
        changed = self._ranking.changed
        for entry in [entry for entry in changed if entry.placed_in is self]:
            del changed[entry]
            self._move(entry)

    def _move(self, entry: Entry) -> None:
        """Move ``entry`` to its new place if its rank has changed."""
        rank = self._ranking.rank_now(entry)
        if rank == entry.rank:
            return
        in_work, in_claims = self.work.discard(entry), self.claims.discard(entry)
        is_paused = self.paused.discard(entry)
        is_seated, has_asked = self.seats.has_seat(entry), entry in self.seats
        self.seats.discard(entry)
        if entry.queue.is_spare:  # the next message puts it out, if anything else is to be done
            self.spare[entry] = None
        self._ranking.set_rank(entry, rank)
        if has_asked:
            self.seats.ask(entry)
        if is_seated:
            self.seats.give(entry)
        if in_work:
            self.work.add(entry)
        if in_claims:
            self.claims.add(entry)
        if is_paused:
            self.paused.add(entry)

    def begin_message(self) -> None:
        """Begin another message, which is planned now."""
        self.work.begin()
        self.seats.begin()

    # -- placing ---------------------------------------------------------------------------------

    def place(self, entry: Entry) -> None:
        """Let ``entry`` wait for a message, or for the seat that it needs before."""
        self.arrive(entry)
        if needs_seat(entry) and not self.seats.has_seat(entry):
            if self._gate.is_paused(entry):
                self._wait_outside(entry)
            elif entry not in self.seats:
                self.seats.ask(entry)
        else:
            self.work.add(entry)

    def arrive(self, entry: Entry) -> None:
        if entry.placed_in is self:
            return
        entry.placed_in = self
        if entry.rank is None:  # else it comes from another engine
            self._ranking.arrive(entry)
        if needs_seat(entry):
            self._gate.called(entry)

    def pause(self, entry: Entry) -> None:
        """Pause ``entry``: it asks for no seat until its program goes on."""
        self.seats.discard(entry)
        self._wait_outside(entry)

    def _wait_outside(self, entry: Entry) -> None:
        self.paused.add(entry)
        assert entry.view is not None, "a call waits that has no rank"
        entry.view.is_paused = True

    def _come_in(self, entry: Entry) -> bool:
        """Take ``entry`` out of those that wait outside; False if it is not among them."""
        if not self.paused.discard(entry):
            return False
        assert entry.view is not None, "a call waited that has no rank"
        entry.view.is_paused = False
        return True

    def resume(self, entry: Entry) -> None:
        """Let ``entry`` ask for a seat again, as its program goes on."""
        if self._come_in(entry):
            self.seats.ask(entry)

    def park(self, entry: Entry) -> None:
        """Let ``entry``, whose sequence is closed, wait for spare time."""
        self._take_out(entry)
        self.seats.discard(entry)
        self._gate.ended(entry)
        entry.placed_in = None
        del self.spare[entry]
        self.parked[entry] = None

    def let_in(self) -> None:
        """Let all parked commands in, as the engine has nothing else to do."""
        for entry in self.parked:
            self.spare[entry] = None
            self.place(entry)
        self.parked.clear()

    def _forget_spare(self, entry: Entry) -> None:
        self.parked.pop(entry, None)
        self.spare.pop(entry, None)

    def give_seat(self, entry: Entry) -> None:
        self.seats.give(entry)
        self.work.add(entry)

    def take_seat(self, entry: Entry) -> None:
        """Take the seat of ``entry``, whose sequence is closed; it asks for one again."""
        self._take_out(entry)
        self.seats.take_back(entry)

    def withdraw(self, queue: CommandQueue) -> None:
        """Remove ``queue``, which moves to another engine with its commands. They keep their ranks
        and their state in the policy."""
        self._engine.ready.discard(queue)
        self._heads.pop(queue, None)
        for entry in queue.entries:
            self._forget_spare(entry)
            if entry.placed_in is self:
                self._take_out(entry)
                self.seats.discard(entry)
                self._gate.ended(entry)
                entry.placed_in = None

    def claim(self, entry: Entry) -> None:
        """Note that ``entry`` found no memory."""
        self.claims.add(entry)
        self._claims_of.setdefault(entry.program.id, {})[entry] = None

    def hold(self, entry: Entry) -> None:
        """Let ``entry`` wait for another command to let go of one of its pages."""
        page = next((page for page in entry.pages if page.appender is not None), None)
        if page is None:  # it was let go of meanwhile
            self.place(entry)
            return
        self._held_up[entry] = page
        self._held_by.setdefault(page, {})[entry] = None

    def _take_out(self, entry: Entry) -> None:
        """Take ``entry`` out of where it waits; a seat stays."""
        if self.work.discard(entry) or self._come_in(entry):
            return
        if self.take_claim(entry):
            return
        page = self._held_up.pop(entry, None)
        if page is not None:
            held = self._held_by[page]
            del held[entry]
            if not held:
                del self._held_by[page]

    def take_claim(self, entry: Entry) -> bool:
        """Remove the claim of ``entry``, which is tried; False if it has none."""
        if not self.claims.discard(entry):
            return False
        claims = self._claims_of[entry.program.id]
        del claims[entry]
        if not claims:
            del self._claims_of[entry.program.id]
        return True

    def claims_of(self, program: ProgramId) -> Iterable[Entry]:
        return self._claims_of.get(program, ())

    def give_up_claims(self) -> None:
        """Turn all claims into work, as the engine was lost with its memory."""
        for entry in list(self.claims):
            self.take_claim(entry)
            self.work.add(entry)

    # -- asking ----------------------------------------------------------------------------------

    def waits(self, entry: Entry) -> bool:
        """Whether ``entry`` waits for a message, and for nothing else."""
        return entry in self.work or entry in self.claims

    def is_held_up(self, entry: Entry) -> bool:
        """Whether ``entry`` waits for another command to let go of a page."""
        return entry in self._held_up

    def waiting(self) -> Iterator[Entry]:
        """All commands that wait for a message, and for nothing else."""
        yield from self.work
        yield from self.claims

    @property
    def num_waiting(self) -> int:
        num_held = len(self._held_up)
        num_ready = len(self.work) + len(self.claims)
        num_asking = self.seats.num_asking
        return num_ready + num_asking + len(self.paused) + num_held + len(self.parked)

    def has_others(self) -> bool:
        """Whether anything waits that is not of a spare queue."""
        places: tuple[Iterable[Entry], ...] = (
            self.work, self.claims, self.seats.members, self.paused, self._held_up
        )  # fmt: skip
        return any(entry not in self.spare for place in places for entry in place)

    def check_invariants(self) -> None:
        if self._engine.ended or self._engine.ready.has_changed:
            return  # more events of this moment follow, and their changes are examined with them
        for order in (self.work, self.claims, self.paused):
            order.check_invariants()
        self.seats.check_invariants()
        running = self._engine.running
        for entry in running:
            assert self.seats.has_seat(entry), "a decode runs without a seat"
            assert entry not in self.work, "a decode that runs waits too"
        for entry in self.work:
            assert not needs_seat(entry) or self.seats.has_seat(entry)
            assert entry not in self.claims
        claims = [entry for entries in self._claims_of.values() for entry in entries]
        assert len(claims) == len(self.claims)
        assert all(entry in self.claims for entry in claims)
        held = [entry for entries in self._held_by.values() for entry in entries]
        assert len(held) == len(self._held_up)
        ready = self._engine.ready
        assert all(queue in ready for queue in self._heads), "a queue without work is kept"
        assert not any(entry in self.seats for entry in self.paused)
        assert all(entry.view is not None and entry.view.is_paused for entry in self.paused)
        assert not any(entry.view.is_paused for entry in self.seats.members if entry.view)
        places = [*self.work, *claims, *held, *self.paused, *self.parked]
        assert len(set(places)) == len(places), "a command waits in two places"
        assert not any(entry in self.seats for entry in self.parked), "a seat is parked"
