"""What goes into one message: claimants, decodes, then everything else, under the token budget.

Owns the choice and its order. It does not know when a message is sent nor what its result says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from quire.control.commands.flow import Flow
from quire.control.commands.host_commands import HostCommands
from quire.control.engines.builder import BatchBuilder
from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.forward_run import ForwardRun
from quire.control.engines.state import EngineState
from quire.control.memory.promises import NO_RECLAIM, Reclaim
from quire.control.programs.program import CommandQueue, Entry
from quire.control.programs.table import ProcessTable
from quire.control.scheduler.claim import Claim
from quire.control.scheduler.decode_lowering import DecodeLowering
from quire.control.scheduler.fairness import FairShare
from quire.control.scheduler.lowering import Lowering, Outcome
from quire.control.scheduler.ranking import Ranking, priority_of
from quire.control.scheduler.reclaimer import Reclaimer
from quire.control.scheduler.restorer import RestoreJob, Restorer
from quire.control.scheduler.seeds import SeedSource
from quire.control.scheduler.window import QueueWindow
from quire.core import commands as c
from quire.core.errors import QuireError

_ADDED, _PARTIAL = Outcome.ADDED, Outcome.PARTIAL
"""Python 3.11 looks a member of an enum up anew each time, which costs more than what it is for."""


class MessagePlanner:
    """Fills one ``BatchBuilder`` after the other.

    ``blocked``: commands that found no memory in the last message. They go first in the next one,
    before any decode, so that their claims can be met by preemption. ``held_up``: commands that
    waited for another one to end when they were looked at last.
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
    ) -> None:
        self._engine = engine
        self._flow = flow
        self._fairness = fairness
        self.ranking = ranking
        self._lowering = Lowering(engine, seeds)
        self.decodes = DecodeLowering(engine, seeds)
        self.restorer = Restorer(engine)
        self.reclaimer = Reclaimer(engine, table, host, ranking.rank, self.preempt)
        self.blocked: dict[Entry, None] = {}
        self.held_up: set[Entry] = set()
        self.num_preemptions = 0
        self._lower: Mapping[type[c.Command], Callable[[Entry, Any, BatchBuilder], Outcome]] = {
            c.EmbedText: self._lowering.embed_text,
            c.EmbedImage: self._lowering.embed_image,
            c.Forward: self._forward,
            c.GetNextDist: self._lowering.dists,
            c.Sample: self._lowering.sample,
            c.Decode: self._decode,
            c.CopyPage: self._copy_page,
        }
        self._windows: dict[CommandQueue, QueueWindow] = {}
        self._builder = BatchBuilder(0, 0)
        self._is_ahead = False
        self._max_commands: int | None = None

    def plan(self, max_commands: int | None, prompt_budget: int | None) -> BatchBuilder:
        """The next message; it may be empty. ``None``: no bound of its own."""
        for queue in self._windows:
            self._engine.tables.trim(queue.serial, self._engine.operations)
        self._windows = {}
        self._engine.memory.promises.renew()
        self._max_commands = max_commands
        self._builder = BatchBuilder(
            self._engine.next_step, self._engine.info.pool.max_batch_tokens, prompt_budget
        )
        claimants, self.blocked = self.blocked, {}
        if self.held_up:
            self.held_up.intersection_update(self.waiting())
        self.restorer.sweep()
        self._add_claimants(claimants)
        self.restorer.add_rows(self._builder, self._reclaim_for)
        self._add_decodes(self._engine.running)
        self._add_all(entry for entry in self.waiting() if entry not in self.blocked)
        self.restorer.add_rows(self._builder, self._reclaim_for)
        return self._builder

    def add_behind(self, builder: BatchBuilder, entries: Collection[Entry]) -> bool:
        """Add ``entries``, which go behind what is in flight, and what may follow each. Work in
        advance is a luxury: nobody gives up memory for it. Whether one found none."""
        blocked, self.blocked = self.blocked, {}
        self._builder, self._is_ahead = builder, True
        for entry in self._ordered(list(entries)):
            self._windows[entry.queue] = QueueWindow()
            self._add_queue(entry)
        found_none = bool(self.blocked)
        self._is_ahead, self.blocked = False, blocked
        return found_none

    @property
    def _is_full(self) -> bool:
        limit = self._max_commands
        return limit is not None and self._builder.num_commands >= limit

    def waiting(self) -> list[Entry]:
        """Commands that wait for a message."""
        heads = (queue.next_entry for queue in self._engine.ready)
        return [*self._engine.unfinished, *(entry for entry in heads if entry is not None)]

    def _is_waiting(self, entry: Entry) -> bool:
        queue = entry.queue
        is_head = queue in self._engine.ready and queue.next_entry is entry
        return is_head or entry in self._engine.unfinished

    def _ordered(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """By priority, then the tenants' fair share, then the policy."""
        by_priority = sorted(entries, key=lambda entry: -priority_of(entry))
        for _, group in groupby(by_priority, key=priority_of):
            yield from self._fairness.ordered(
                group, lambda entry: entry.program.tenant, self.ranking.key
            )

    def _add_claimants(self, claimants: Collection[Entry]) -> None:
        """What found no memory before, the oldest program first: nobody has pinned anything for
        this message yet, so its claim can always be met."""
        if not claimants:
            return
        oldest = self.reclaimer.oldest()
        self._add_group([entry for entry in claimants if entry.program is oldest])
        self.restorer.add_rows(self._builder, self._reclaim_for, oldest)
        self._add_group([entry for entry in claimants if entry.program is not oldest])

    def _add_group(self, claimants: Collection[Entry]) -> None:
        self._add_decodes(entry for entry in claimants if entry in self._engine.running)
        self._add_all(entry for entry in claimants if self._is_waiting(entry))

    # -- decodes ---------------------------------------------------------------------------------

    def _add_decodes(self, entries: Iterable[Entry]) -> None:
        for entry in self._ordered(list(entries)):
            run = self._engine.running.get(entry)
            if self._is_full or self._builder.budget <= 0:
                return
            if run is None or run in self._builder.runs:
                continue
            # One slot for the token that this step appends, one because a sequence whose cursor
            # reaches its limit ends.
            if self.decodes.bind_ahead(run, 2, self._reclaim_for(entry)):
                self._builder.advance(run)
                self._fairness.charge(entry.program.tenant, 1)
            else:
                self.blocked[entry] = None

    def preempt(self, run: DecodeRun) -> None:
        """Close the run's sequence; it goes on from its tokens when it is scheduled again."""
        self._engine.suspend(run)
        del self._engine.running[run.entry]
        self._engine.unfinished[run.entry] = None
        run.entry.program.num_preemptions += 1
        self.num_preemptions += 1

    # -- everything else -------------------------------------------------------------------------

    def _add_all(self, entries: Iterable[Entry]) -> None:
        for entry in self._ordered(list(entries)):
            if self._is_full:
                return
            if self._is_waiting(entry):
                self._add_queue(entry)

    def _add_queue(self, entry: Entry) -> None:
        """Add ``entry`` and whatever of its queue may stand in the same message behind it."""
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
            window.add(current)
            if outcome is _PARTIAL:
                window.close()
                self._engine.unfinished[current] = None
                break
            self._engine.unfinished.pop(current, None)
            current = self._flow.advance(queue)
        if cost:
            self._fairness.charge(queue.program.tenant, cost)

    def _try(self, entry: Entry) -> Outcome:
        """Lower ``entry``; what fails is answered, what is blocked goes first the next time."""
        builder, command = self._builder, entry.command
        try:
            outcome = self._lower[type(command)](entry, command, builder)
            if builder.lost:
                lost, builder.lost = builder.lost, []
                self.restorer.request(entry, lost)
        except QuireError as error:
            self._engine.unfinished.pop(entry, None)
            self._flow.fail(entry, error.record())
            self._flow.advance(entry.queue)
            return Outcome.WAITS
        if outcome is _ADDED:
            self.held_up.discard(entry)
            return outcome
        if outcome is Outcome.WAITS:
            self.held_up.add(entry)
        else:
            self.held_up.discard(entry)
        if outcome is Outcome.NO_ROOM or (outcome is Outcome.NO_BUDGET and _is_too_long(entry)):
            self.blocked[entry] = None
        return outcome

    def _forward(self, entry: Entry, command: c.Forward, builder: BatchBuilder) -> Outcome:
        return self._lowering.forward(entry, command, builder, self._reclaim_for(entry))

    def _copy_page(self, entry: Entry, command: c.CopyPage, builder: BatchBuilder) -> Outcome:
        return self._lowering.copy_page(entry, command, builder, self._reclaim_for(entry))

    def _decode(self, entry: Entry, command: c.Decode, builder: BatchBuilder) -> Outcome:
        outcome = self.decodes.prefill(entry, command, builder, self._reclaim_for(entry))
        run = entry.run
        if isinstance(run, DecodeRun) and run.is_open:
            self._engine.running[entry] = run
        return outcome

    def _reclaim_for(self, entry: Entry, job: RestoreJob | None = None) -> Reclaim:
        if self._is_ahead:
            return NO_RECLAIM

        def give_up(num_blocks: int) -> bool:
            kept = {run.entry for run in self._builder.runs}
            waiting = [other for other in self.waiting() if other not in self.held_up]
            claim = Claim(entry, job, waiting, self.restorer.jobs)
            return self.reclaimer.reclaim(num_blocks, claim, kept)

        return Reclaim(entry.seniority if job is None else job.order, give_up)


def _is_too_long(entry: Entry) -> bool:
    """Whether what is left of it has to stand in one message."""
    return isinstance(entry.run, ForwardRun) and not entry.run.is_splittable


__all__ = ["MessagePlanner"]
