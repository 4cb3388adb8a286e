"""Chooses what goes into one message: claimants, decodes, then all else, under the token budget.

Owns the choice and its order. It does not know when a message is sent nor how to read its result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from quire.control.commands.flow import Flow
from quire.control.commands.host_commands import HostCommands
from quire.control.engines.builder import BatchBuilder
from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.forward_run import ForwardRun
from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.memory.promises import NO_RECLAIM, Reclaim
from quire.control.programs.program import CommandQueue, Entry, Program
from quire.control.programs.states import CommandState
from quire.control.programs.table import ProcessTable
from quire.control.scheduler.exchange import ExchangeScheduler
from quire.control.scheduler.lowering.by_command import LoweringByCommand
from quire.control.scheduler.lowering.lowering import LoweringResult
from quire.control.scheduler.lowering.seeds import SeedSource
from quire.control.scheduler.lowering.window import QueueWindow
from quire.control.scheduler.order.fairness import FairShare
from quire.control.scheduler.order.ranking import Ranking, rank_of
from quire.control.scheduler.pausing.gate import ProgramGate
from quire.control.scheduler.pausing.pausing import FamilyPausing
from quire.control.scheduler.reclaiming.claim import Claim
from quire.control.scheduler.reclaiming.reclaimer import Reclaimer
from quire.control.scheduler.reclaiming.restorer import RestoreJob, Restorer
from quire.control.scheduler.waiting.admission import Admission
from quire.control.scheduler.waiting.backlog import Backlog, needs_seat
from quire.control.scheduler.waiting.joining import Joining
from quire.control.scheduler.waiting.seating import Seating
from quire.control.scheduler.waiting.spare import SpareTime
from quire.core import commands as c
from quire.core.errors import QuireError
from quire.core.ids import TenantId

_ADDED, _PARTIAL = LoweringResult.ADDED, LoweringResult.PARTIAL
_NO_ROOM, _NO_BUDGET, _WAITS = (
    LoweringResult.NO_ROOM,
    LoweringResult.NO_BUDGET,
    LoweringResult.WAITS,
)
"""Bound once: Python 3.11 looks up a member of an enum at each use, which costs more than the
use."""

MAX_FAILED_CLAIMS = 8
"""The number of claims without memory that are tried for one message: a later one in the order
would have to find some where these found none."""

MAX_MISSES = 32
"""The number of commands without budget that are tried for one message."""


class MessagePlanner:
    """Fills one ``BatchBuilder`` after the other.

    ``blocked``: commands that found no memory in the last message.
    """

    def __init__(
        self,
        engine: EngineState,
        table: ProcessTable,
        flow: Flow,
        host: HostCommands,
        fairness: FairShare,
        ranking: Ranking,
        seeds: SeedSource,
        admission: Admission,
        gate: ProgramGate,
        time: EventTime,
    ) -> None:
        self._engine = engine
        self._table = table
        self._flow = flow
        self._fairness = fairness
        self.ranking = ranking
        self.backlog = Backlog(engine, fairness, ranking, gate)
        self.pausing = FamilyPausing(engine, table, self.backlog, gate, fairness, time)
        self._seats = self.backlog.seats
        self.restorer = Restorer(engine)
        self.exchange = ExchangeScheduler(engine, host.leases, flow, time)
        self._lowering = LoweringByCommand(engine, seeds, self.exchange)
        self.decodes = self._lowering.decodes
        self.seating = Seating(engine, table, self.backlog, admission, self.pausing)
        self.spare = SpareTime(engine, self.backlog, self.seating)
        self.reclaimer = Reclaimer(engine, table, host, self.backlog, ranking, self.seating)
        self.blocked: dict[Entry, None] = {}
        self._windows: dict[CommandQueue, QueueWindow] = {}
        self._builder = BatchBuilder(0, 0)
        self._again: dict[Entry, None] = {}
        self._is_ahead = False
        self._max_commands: int | None = None
        self._joining = Joining(engine, self.backlog, self.seating, self.pausing)

    def plan(
        self,
        max_commands: int | None,
        prompt_limit: Callable[[], int | None],
        *,
        thorough: bool = False,
    ) -> BatchBuilder:
        """Plan the next message, which may be empty. ``prompt_limit`` is called when the planner
        knows which commands take part; it returns None for no bound of its own. ``thorough``: try
        all claims for memory."""
        for queue in self._windows:
            self._engine.tables.trim(queue.serial, self._engine.operations)
        self._windows = {}
        self._engine.memory.promises.renew()
        self._max_commands = max_commands
        starved, self.blocked = [e for e in self.blocked if e in self._engine.running], {}
        self.backlog.sync()
        self.restorer.sweep()
        self.spare.review()
        self.backlog.begin_message()
        self.seating.choose()
        self._advance_time()
        budget = self._engine.info.pool.max_batch_tokens
        self._builder = BatchBuilder(self._engine.next_step, budget, prompt_limit())
        self._add_claimants(starved, None if thorough else MAX_FAILED_CLAIMS)
        self._add_restores()
        self._add_decodes(list(self._engine.running))
        self._add_work()
        self._add_restores()
        self._put_back()
        self._joining.planned()
        return self._builder

    def add_behind(self, builder: BatchBuilder, entries: Collection[Entry]) -> bool:
        """Add ``entries`` and what may follow each to a message behind the one in flight. No
        command gives up memory for work in advance. Returns whether an entry was left out for lack
        of memory."""
        if not entries:
            return False
        blocked, self.blocked = self.blocked, {}
        self._builder, self._is_ahead = builder, True
        for entry in entries:
            self.backlog.arrive(entry)
        for entry in self._fairness.ordered(entries, _tenant_of, self.ranking.order_of(entries)):
            self._windows[entry.queue] = QueueWindow()
            if self.backlog.work.discard(entry):
                self._again[entry] = None
            self._add_queue(entry)
        found_none = bool(self.blocked)
        self._is_ahead, self.blocked = False, blocked
        self._put_back()
        return found_none

    @property
    def _is_full(self) -> bool:
        limit = self._max_commands
        return limit is not None and self._builder.num_commands >= limit

    @property
    def could_join(self) -> bool:
        """Whether a message that is planned now might carry a command that those in flight do not:
        then no message of many steps, and none behind the one in flight, is sent before it."""
        return self._joining.is_possible(is_blocked=bool(self.blocked))

    def prompts_to_come(self) -> list[Entry]:
        """The prompts that would be in a message planned now, if nothing else was."""
        return self._joining.prompts()

    def _advance_time(self) -> None:
        active = [key[1] for key in self._seats.tenants()]
        first = self.backlog.work.first()
        if first is not None:
            active.append(first.program.tenant)
        self._fairness.advance(active)

    # -- claims: commands that found no memory before --------------------------------------------

    def _add_claimants(self, starved: Collection[Entry], most_failed: int | None) -> None:
        """Add commands that found no memory before, the oldest program first: nothing is pinned for
        this message yet, so its claim can always be met."""
        if not starved and not self.backlog.claims:
            return
        oldest = self.reclaimer.oldest()
        self._add_decodes([entry for entry in starved if entry.program is oldest])
        if oldest is not None:
            of_oldest = sorted(self.backlog.claims_of(oldest.id), key=rank_of)
            for entry in of_oldest[:most_failed]:
                self._look_again(entry)
        self._add_restores(oldest)
        self._add_decodes([entry for entry in starved if entry.program is not oldest])
        num_failed = 0
        while most_failed is None or num_failed < most_failed:
            claimant = self.backlog.claims.first()
            if claimant is None or self._is_full:
                return
            self._look_again(claimant)
            num_failed += claimant in self.blocked

    def _look_again(self, entry: Entry) -> None:
        if not self._is_full:
            self.backlog.take_claim(entry)
            self._again[entry] = None
            self._add_queue(entry)

    def _add_restores(self, program: Program | None = None) -> None:
        """Add rows that compute lost pages again, charged to the commands that wait for them."""
        num_before = len(self._builder.restores)
        self.restorer.add_rows(self._builder, self._reclaim_for, program)
        for restored in self._builder.restores[num_before:]:
            self._fairness.charge(restored.requester.program.tenant, restored.num_tokens)

    # -- decodes ---------------------------------------------------------------------------------

    def _add_decodes(self, entries: Collection[Entry]) -> None:
        """Add a step of each. If all have room, their order does not matter."""
        if self._max_commands is None and len(entries) <= self._builder.budget:
            added = [entry for entry in entries if self._add_decode(entry)]
            self._fairness.charge_all([_tenant_of(entry) for entry in added], [1] * len(added))
            return
        for entry in self._fairness.ordered(entries, _tenant_of, rank_of):
            if self._is_full or self._builder.budget <= 0:
                return
            if self._add_decode(entry):
                self._fairness.charge(entry.program.tenant, 1)

    def charge_steps(
        self, runs: Sequence[DecodeRun], num_steps: Sequence[int], num_charged: int
    ) -> None:
        """Charge the steps of decodes in a message, beyond the ``num_charged`` that its plan has
        charged for each."""
        by_tenant: dict[TenantId, int] = {}
        for index, run in enumerate(runs):
            num_more = num_steps[index] - num_charged
            if num_more:
                tenant = run.entry.program.tenant
                by_tenant[tenant] = by_tenant.get(tenant, 0) + num_more
        for tenant, num_tokens in by_tenant.items():
            self._fairness.charge(tenant, num_tokens)

    def _add_decode(self, entry: Entry) -> bool:
        run = self._engine.running.get(entry)
        if run is None or run in self._builder.runs:
            return False
        # One slot for the token that this step appends, one because a sequence whose cursor
        # reaches its limit ends.
        if run.next_slot + 2 <= run.limit_slot or self.decodes.bind_ahead(
            run, 2, self._reclaim_for(entry)
        ):
            self._builder.advance(run)
            return True
        self.blocked[entry] = None
        return False

    # -- everything else -------------------------------------------------------------------------

    def _add_work(self) -> None:
        num_missed = 0
        while num_missed < MAX_MISSES and not self._is_full:
            entry = self.backlog.work.pop()
            if entry is None:
                return
            num_before = self._builder.num_commands
            self._again[entry] = None
            self._add_queue(entry)
            num_missed += self._builder.num_commands == num_before and entry in self._again

    def _add_queue(self, entry: Entry) -> None:
        """Add ``entry`` and the commands behind it in its queue that may be in the same message."""
        queue = entry.queue
        window = self._windows.get(queue)
        if window is None:
            window = self._windows[queue] = QueueWindow()
        current: Entry | None = entry
        cost = 0
        while current is not None and not self._is_full and window.admits(current):
            num_before = self._builder.num_tokens
            outcome = self._try(current)
            if outcome is not _ADDED and outcome is not _PARTIAL:
                break
            cost += (self._builder.num_tokens - num_before) or 1
            self._flow.start(current)
            self._table.note_active_holder(current.program)
            window.add(current)
            if outcome is _PARTIAL:
                window.close()
                self._engine.unfinished[current] = None
                self._engine.ready.discard(queue)  # no other command of it may start now
                self._again[current] = None
                break
            self._engine.unfinished.pop(current, None)
            self._again.pop(current, None)
            current = self._flow.advance(queue)
        if cost:
            self._fairness.charge(queue.program.tenant, cost)

    def _put_back(self) -> None:
        """Put commands that were tried and still wait back where they wait."""
        again, self._again = self._again, {}
        for entry in again:
            if entry in self.blocked:
                self.backlog.claim(entry)
            else:
                self.backlog.place(entry)

    def _try(self, entry: Entry) -> LoweringResult:
        """Lower ``entry``. If it fails, answer it; if it is blocked, it goes first the next
        time."""
        builder = self._builder
        self.backlog.arrive(entry)
        try:
            outcome = self._lower(entry)
            if builder.lost:
                lost, builder.lost = builder.lost, []
                self.restorer.request(entry, lost)
        except QuireError as error:
            self._engine.unfinished.pop(entry, None)
            self._again.pop(entry, None)
            self._flow.fail(entry, error.record())
            self._flow.advance(entry.queue)
            return _WAITS
        if outcome is _WAITS:
            if self._again.pop(entry, False) is None:
                self.backlog.hold(entry)
        elif entry in self._again and (  # a command behind another one waits for that one
            outcome is _NO_ROOM or (outcome is _NO_BUDGET and _is_too_long(entry))
        ):
            self.blocked[entry] = None
        return outcome

    def _lower(self, entry: Entry) -> LoweringResult:
        is_decode = isinstance(entry.command, c.Decode)
        if is_decode and needs_seat(entry) and not self.seating.sit_down(entry):
            return _NO_BUDGET
        outcome = self._lowering.lower(entry, self._builder, self._reclaim_for)
        run = entry.run
        if isinstance(run, DecodeRun) and run.is_open:
            self._engine.running[entry] = run
        elif is_decode and outcome is _NO_ROOM:  # it holds cached pages, and is in no message
            self._table.note_active_holder(entry.program)
        return outcome

    def _reclaim_for(self, entry: Entry, job: RestoreJob | None = None) -> Reclaim:
        if self._is_ahead or entry.queue.is_spare:
            return NO_RECLAIM

        def give_up(num_blocks: int) -> bool:
            kept = {run.entry for run in self._builder.runs}
            claim = Claim(entry, job, self._waiting_of, self.restorer.jobs)
            return self.reclaimer.reclaim(num_blocks, claim, kept)

        order = entry.seniority if job is None else job.order
        return Reclaim(order, give_up, entry.program.id)

    def _waiting_of(self, program: Program | None) -> Iterable[Entry]:
        """Commands that wait for a message and for nothing else; only those of ``program``, if
        given."""
        if program is None:
            return [*self.backlog.waiting(), *self._again]
        entries = program.entries.values()
        return [e for e in entries if e in self._again or self.backlog.waits(e)]

    def refusable(self) -> list[Entry]:
        """Commands that block one another: those that claim memory, and decodes that have lost
        their seats and still hold some."""
        unfinished = self._engine.unfinished
        return [*self.blocked, *(e for e in unfinished if not self.backlog.seats.has_seat(e))]

    def withdraw(self, queue: CommandQueue) -> None:
        """Forget ``queue``, which moves to another engine; no message carries a command of it."""
        self.backlog.withdraw(queue)
        self._windows.pop(queue, None)
        for entry in queue.entries:
            self.blocked.pop(entry, None)

    def take_over(self, run: DecodeRun) -> None:
        """Take over ``run`` of another engine. Its pages are here, as they were before it began. If
        it has begun, no other command of its queue can be next."""
        self.decodes.begin_again(run)
        if run.entry.state is CommandState.STARTED:
            self._engine.unfinished[run.entry] = None
            self.backlog.place(run.entry)

    def lose_flight(self) -> None:
        """Let decodes that ran ask for a seat again, and claims be examined again, as the engine is
        lost."""
        for run in list(self._engine.running.values()):
            self.seating.unseat(run)
        self.blocked.clear()
        self.backlog.sync()
        self.backlog.give_up_claims()


def _tenant_of(entry: Entry) -> TenantId:
    return entry.program.tenant


def _is_too_long(entry: Entry) -> bool:
    """Whether the rest of ``entry`` must be in one message."""
    return isinstance(entry.run, ForwardRun) and not entry.run.is_splittable
