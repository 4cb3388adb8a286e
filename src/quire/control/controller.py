"""``Controller``: events in, actions out.

Owns how each event is handled; ``composition`` puts the parts together. Has no clock, does no I/O,
uses no randomness: the same events give the same actions, which is what makes replay exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.control.commands.dependencies import cancelled
from quire.control.composition import Parts
from quire.control.feed import ProcessChanges
from quire.control.foundation import EngineTable, Foundation
from quire.control.held_texts import HeldText, held_texts
from quire.control.index_reader import EngineIndex, IndexPlace, new_of_indexes
from quire.control.programs.families import check_family, join_family, leave_family
from quire.control.programs.program import Program
from quire.control.rows import ProcessRow
from quire.control.statistics import EngineStatistics, Statistics
from quire.core import events as e
from quire.core.actions import Action
from quire.core.config import TenantConfig
from quire.core.encoding import EncoderInfo
from quire.core.errors import (
    ErrorRecord,
    ProgramTerminated,
)
from quire.core.ids import EngineId, ProgramId, TenantId
from quire.core.policy import DispatchPolicy, Policy
from quire.core.scheduler_config import SchedulerConfig
from quire.core.tracing import CallRecord, TraceListener


class Controller:
    """The I/O-free control core of one node.

    ``tenants``: shares by tenant; one that is not named has weight 1. ``seed``: base of the seeds
    that are picked for samplers without one. ``listener``: receives calls and messages that have
    ended. ``policy``: a policy object to use instead of the one that ``config`` names.
    ``dispatch``: when messages are sent, if not as soon as possible.

    Raises:
        ConfigError: an unknown policy, or a weight that is not positive.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        tenants: Sequence[TenantConfig] = (),
        *,
        seed: int = 0,
        policy: Policy | None = None,
        dispatch: DispatchPolicy | None = None,
        listener: TraceListener | None = None,
    ) -> None:
        base = Foundation(config, tenants, policy, dispatch, listener)
        engines = EngineTable()
        parts = Parts(base, engines, seed)
        self._policy, self._dispatch = base.policy, base.dispatch
        self._time, self._outbox, self._tracer = base.time, base.outbox, base.tracer
        self._table, self._ranking = base.table, base.ranking
        self._engines, self._schedulers = engines.engines, engines.schedulers
        self._by_number, self._awake = engines.by_number, engines.awake
        self._holdings, self._host, self._flow = parts.holdings, parts.host, parts.flow
        self._timers, self._feed = parts.timers, parts.feed
        self._life, self._encoding = parts.life, parts.encoding
        self._calls, self._bringing = parts.calls, parts.bringing
        self._handlers = self._event_handlers()

    def _event_handlers(self) -> Mapping[type[e.EventBase], Callable[[Any], None]]:
        return {
            e.EngineUp: self._engine_up,
            e.EngineDown: self._engine_down,
            e.EngineGivenUp: self._engine_given_up,
            e.ProgramStarted: self._program_started,
            e.ProgramEnded: self._program_ended,
            e.Called: self._calls.handle,
            e.BatchEncoded: self._encoding.completed,
            e.BatchCompleted: self._batch_completed,
            e.TransfersCompleted: self._transfers_completed,
            e.ExchangeEnded: self._exchange_ended,
            e.Tick: self._tick,
        }

    def handle(self, event: e.Event) -> list[Action]:
        """Take in one event; return what the shell must do, in order.

        Raises:
            ConfigError: an engine that this controller cannot serve comes up.
            EngineFault: a result that belongs to no message; the engine must be replaced.
        """
        self._time.now_s = event.time_s
        self._ranking.tell_time()
        self._handlers[type(event)](event)
        if not event.more:
            self._settle(event.time_s)
        return self._outbox.take()

    def _settle(self, now_s: float) -> None:
        """End what has expired, continue what can go on, send what may be sent, ask for a tick."""
        self._expire(now_s)
        self._retry_stalled()
        self._bringing.go_on()
        self._pump()
        self._retry_stalled()
        while self._bringing.has_work:
            self._bringing.go_on()
            self._pump()
            self._retry_stalled()
        awake = [self._by_number[number] for number in self._awake.all()]
        due_s = [at for one in awake if (at := one.next_dispatch_s) is not None]
        self._awake.keep([one.engine.number for one in awake if not one.may_rest])
        at_s = self._timers.next_timer_s(due_s + self._encoding.due_s())
        if at_s is not None:
            self._outbox.set_timer(at_s)

    def _pump(self) -> None:
        number = self._awake.after(-1)
        while number is not None:
            scheduler = self._by_number[number]
            if scheduler.has_news():
                scheduler.pump()
            number = self._awake.after(number)
        self._encoding.pump()

    def _retry_stalled(self) -> None:
        number = self._awake.after(-1)
        while number is not None:
            engine = self._by_number[number].engine
            if engine.stalled or engine.starved:
                self._flow.retry_stalled(engine)
            number = self._awake.after(number)

    # -- engines ---------------------------------------------------------------------------------

    def _engine_up(self, event: e.EngineUp) -> None:
        if isinstance(event.info, EncoderInfo):
            self._encoding.up(event.engine, event.model, event.info)
        else:
            self._life.up(event, event.info)

    def _engine_down(self, event: e.EngineDown) -> None:
        if not self._encoding.down(event.engine):
            self._life.down(event)

    def _engine_given_up(self, event: e.EngineGivenUp) -> None:
        engine = self._engines.get(event.engine)
        if engine is None:
            self._encoding.given_up(event.engine, event.model, event.error)
        else:
            self._life.given_up(engine, event.error)

    # -- programs --------------------------------------------------------------------------------

    def _program_started(self, event: e.ProgramStarted) -> None:
        program = self._table.start(event)
        parent = None if event.parent is None else self._table.get(event.parent)
        if event.shares_quotas and parent is not None:
            join_family(program, parent)
        self._timers.watch(program)
        self._tracer.program_started(event)

    def _program_ended(self, event: e.ProgramEnded) -> None:
        program = self._table.get(event.program)
        if program is not None:
            self._end_program(program, event.reason)

    def _end_program(self, program: Program, reason: str) -> None:
        """Answer all commands of ``program``, free what it holds as soon as messages in flight
        allow, and forget it."""
        for entry in list(program.entries.values()):
            if not entry.is_answered:
                if entry.on_end is None:
                    self._outbox.fail(program.id, entry.id, cancelled(entry.id, reason).record())
                entry.is_answered = True
        for queue in list(program.queues.values()):
            self._calls.close_queue(queue, reason)
        self._encoding.cancel_all(program, reason)
        self._host.owner_ended(program, begins_again=reason == e.ENGINE_WAS_LOST)
        self._table.end(program)
        leave_family(program)
        self._ranking.program_ended(program.id)
        for scheduler in self._schedulers.values():
            scheduler.planner.pausing.program_ended(program)
        self._outbox.closed(program, reason)
        self._tracer.program_ended(program, reason)

    def _terminate(self, program: Program, error: ErrorRecord) -> None:
        self._end_program(program, error.message)
        self._outbox.terminate(program.id, error)

    def _batch_completed(self, event: e.BatchCompleted) -> None:
        scheduler = self._schedulers.get(event.engine)
        if scheduler is not None and scheduler.engine.is_up:
            scheduler.complete(event.result)

    def _transfers_completed(self, event: e.TransfersCompleted) -> None:
        engine = self._engines.get(event.engine)
        if engine is not None and engine.is_up:
            engine.touch()
            transfers, failed = event.ended.transfers.tolist(), event.ended.failed.tolist()
            ended = engine.end_transfers(transfers, failed, self._table.programs())
            self._schedulers[engine.id].tiering.observe(event.ended.elapsed_s, ended)
            self._tracer.transfers_ended(engine, ended)

    def _exchange_ended(self, event: e.ExchangeEnded) -> None:
        scheduler = self._schedulers.get(event.engine)
        if scheduler is not None and scheduler.engine.is_up:
            self._tracer.exchange_ended(scheduler.engine, event.ended)
            scheduler.planner.exchange.ended(event.ended)

    def _tick(self, event: e.Tick) -> None:
        """Only mark the timer as used: every event ends what has expired and sends what is due."""
        self._timers.fired()

    def _expire(self, now_s: float) -> None:
        for export in self._host.exports.expired(now_s):
            self._host.remove_export(export)
        for lease in self._host.leases.expired(now_s):
            self._schedulers[lease.name.engine].planner.exchange.close(lease, "has expired")
        if self._host.lease_uses.priced:
            self._host.lease_uses.expire_prices(now_s)
        for program in self._timers.idle_too_long(now_s):
            error = ProgramTerminated(
                f"program {program.id} was idle for {program.idle_ttl_s} s, which is its limit",
                idle_ttl_s=program.idle_ttl_s,
            )
            self._terminate(program, error.record())

    # -- views -----------------------------------------------------------------------------------

    def processes(self, tenant: TenantId | None = None) -> tuple[ProcessRow, ...]:
        """The programs of ``tenant`` in the process table (None: of all tenants), oldest first."""
        return self._feed.all_rows(tenant)

    def changes(self, since: int, tenant: TenantId | None = None) -> ProcessChanges:
        """The changes of ``tenant``'s programs (None: of all) since change number ``since``; 0 is
        before all changes."""
        return self._feed.look(since, tenant)

    def index_changes(self, known: Mapping[EngineId, IndexPlace]) -> tuple[EngineIndex, ...]:
        """The changes of the engines' prefix indexes since the places in ``known``."""
        return new_of_indexes(self._engines, known)

    def held_texts(self, program: ProgramId, max_tokens: int) -> tuple[HeldText, ...]:
        """The texts that ``program`` has in pages, up to ``max_tokens`` tokens in all."""
        found = self._table.get(program)
        return () if found is None else held_texts(found, self._engines, max_tokens)

    def process(self, program: ProgramId) -> ProcessRow | None:
        """The program's line of the process table; None if it has ended."""
        return self._feed.row(program)

    def calls(self, program: ProgramId) -> tuple[CallRecord, ...]:
        """The calls of ``program`` that have not ended, in the order of their arrival."""
        found = self._table.get(program)
        return () if found is None else self._tracer.under_way(found)

    def engine_statistics(self) -> tuple[EngineStatistics, ...]:
        """The statistics of the engines with memory."""
        return tuple(one.statistics() for one in self._schedulers.values())

    def statistics(self) -> Statistics:
        programs = self._table.programs()
        return Statistics(
            policy=self._policy.name,
            dispatch=self._dispatch.name,
            num_programs=len(self._table),
            num_queues=sum(len(program.queues) for program in programs),
            num_pending_commands=sum(len(program.entries) for program in programs),
            num_exports=len(self._host.exports),
            num_leases=len(self._host.leases),
            engines=self.engine_statistics(),
            encoders=self._encoding.statistics(),
        )

    def check_invariants(self) -> None:
        """Assert that nothing is lost, aliased or counted wrongly. For tests and the idle loop."""
        programs = self._table.programs()
        self._table.check_invariants()
        self._host.leases.check_invariants()
        self._holdings.check_invariants(programs)
        for program in programs:
            check_family(program)
        for engine in self._engines.values():
            engine.check_invariants(programs, self._host.exports, self._host.leases)
        for number, scheduler in enumerate(self._by_number):
            scheduler.check_invariants()
            assert scheduler.engine.number == number
            assert scheduler.may_rest or number in self._awake, "an engine is never looked at"
        self._encoding.check_invariants()
