"""The batch scheduler of one engine: when a message is sent and how long it may take (Pie 6.1).

Owns the calls of the dispatch policy and the number of steps. ``planner`` chooses what goes into a
message, ``run_ahead`` what may follow before its result is known; ``completion`` reads results.
"""

from __future__ import annotations

from itertools import pairwise

from quire.control.commands.flow import Flow
from quire.control.engines.builder import BatchBuilder
from quire.control.engines.in_flight import InFlight, message_statistics
from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.outbox import Outbox
from quire.control.programs.service import note_sent
from quire.control.scheduler.completion import ResultReader
from quire.control.scheduler.planner import MessagePlanner
from quire.control.scheduler.reclaiming.unblocking import Unblocking
from quire.control.scheduler.run_ahead import RunAhead
from quire.control.scheduler.tiering.tiering import Tiering
from quire.control.scheduler.timing.anticipation import Anticipation
from quire.control.scheduler.timing.batch_sizes import BatchSizes
from quire.control.scheduler.timing.chunk_time import ChunkTime
from quire.control.scheduler.timing.prompts_ahead import PromptsAhead
from quire.control.scheduler.timing.step_time import DecodeStepTime
from quire.control.scheduler.waiting.spare import MESSAGE_S
from quire.control.statistics import EngineStatistics
from quire.control.tracing import Tracer
from quire.core.batch_result import BatchResult, SequenceTokens
from quire.core.errors import EngineFault
from quire.core.policy import DispatchPolicy
from quire.core.scheduler_config import SchedulerConfig


class EngineScheduler:
    """Schedules one engine. ``pump`` sends what may be sent now."""

    def __init__(
        self,
        engine: EngineState,
        config: SchedulerConfig,
        dispatch: DispatchPolicy,
        planner: MessagePlanner,
        completion: ResultReader,
        chunk_time: ChunkTime,
        tiering: Tiering,
        flow: Flow,
        outbox: Outbox,
        time: EventTime,
        tracer: Tracer,
    ) -> None:
        self.engine = engine
        self.planner = planner
        self.step_time = DecodeStepTime(config.step_quantum_s, config.max_steps_per_message)
        self.chunk_time = chunk_time
        self.tiering = tiering
        self.anticipation = Anticipation(config.patience if dispatch.is_adaptive else 0.0)
        self._unblocking = Unblocking(engine, planner, flow)
        self._ahead = RunAhead(engine, planner.decodes, flow)
        self._run_ahead = config.run_ahead and dispatch.max_commands is None
        self._prompts = PromptsAhead(
            engine, self.chunk_time, self.step_time, self._run_ahead and dispatch.is_adaptive
        )
        self._dispatch = dispatch
        self._completion = completion
        self._outbox = outbox
        self._time = time
        self._tracer = tracer
        self.next_dispatch_s: float | None = None
        self.num_batches = 0
        self.num_rows = 0
        self.batch_sizes = BatchSizes()
        self.num_tokens = 0

    # -- when ------------------------------------------------------------------------------------

    def has_news(self) -> bool:
        """Whether ``pump`` may have something to do: something has happened, a time has come, or
        something waits and no message is in flight whose result will wake it. With 64 engines an
        event concerns one of them."""
        engine, due_s = self.engine, self.next_dispatch_s
        if engine.is_touched or engine.ended or engine.unlocked:
            return True
        if not engine.in_flight and self._has_work:
            return True
        return due_s is not None and due_s <= self._time.now_s

    @property
    def may_rest(self) -> bool:
        """Whether nothing can be done before something happens to the engine: then ``has_news``
        need not be called."""
        engine = self.engine
        if engine.is_touched or engine.ended or engine.unlocked or engine.stalled or engine.starved:
            return False
        return self.next_dispatch_s is None and (bool(engine.in_flight) or not self._has_work)

    @property
    def _has_work(self) -> bool:
        """Whether anything runs, waits, or has to be moved."""
        engine, planner = self.engine, self.planner
        if engine.running or engine.ready.has_changed or planner.backlog.num_waiting:
            return True
        return bool(planner.restorer.jobs) or engine.operations.cannot_wait

    def pump(self) -> None:
        """Send the next message if it is time; at most one waits behind the running one."""
        self.next_dispatch_s = None
        self.planner.backlog.sync()
        if self.engine.is_up:
            self._send_what_may_go()
        self.engine.is_touched = False  # sending touches it too

    def _send_what_may_go(self) -> None:
        engine = self.engine
        if not engine.in_flight:
            self._send_when_due()
        if len(engine.in_flight) == 1 and self._run_ahead and not self.planner.spare.is_used:
            if self.planner.could_join:
                self._send_prompts_ahead()
            else:
                self._send_ahead()
        self._look_no_later(self.planner.pausing.next_look_s())
        self._look_no_later(self.tiering.next_look_s())

    def _look_no_later(self, at_s: float | None) -> None:
        due_s = self.next_dispatch_s
        if at_s is not None and (due_s is None or at_s < due_s):
            self.next_dispatch_s = at_s

    def _send_when_due(self) -> None:
        engine, now_s = self.engine, self._time.now_s
        num_ready = len(engine.running) + self.planner.backlog.num_waiting
        if not num_ready:
            self.planner.restorer.sweep()
            self._send_transfers()
            return
        oldest_s = now_s if self._dispatch.is_adaptive else self._oldest_ready_s()
        at_s = self._dispatch.ready_at_s(num_ready, oldest_s, now_s)
        if not engine.running:  # a running decode is not held back for others
            at_s = self.anticipation.wait_until_s(now_s) or at_s
        if at_s is not None and at_s > now_s:
            self.next_dispatch_s = at_s
        elif at_s is not None:
            self._send_next()

    def _oldest_ready_s(self) -> float:
        """Since when the command that has waited longest is ready. Reads all: dispatch policies
        that need it exist only for comparison."""
        heads = (queue.next_entry for queue in self.engine.ready)
        waiting = [*self.engine.running, *self.engine.unfinished]
        waiting += [entry for entry in heads if entry is not None]
        return min((entry.ready_s for entry in waiting), default=self._time.now_s)

    def _send_next(self) -> None:
        builder = self._plan()
        if builder.is_empty:
            builder = self._unblocking.unblock(builder, self._plan)
        if not builder.is_empty:
            self._send(builder, self._choose_steps(builder), num_charged=1)
        else:
            self._send_transfers()

    def _send_transfers(self) -> None:
        """Send the transfers that no row accompanies in a message of their own."""
        engine = self.engine
        self.tiering.run()
        if engine.operations.cannot_wait:
            self._send(BatchBuilder(engine.next_step, engine.info.pool.max_batch_tokens), [])

    def _plan(self, thorough: bool = False) -> BatchBuilder:
        self._prompts.held_up(False)
        limit = self._dispatch.max_commands
        return self.planner.plan(limit, self._prompt_limit, thorough=thorough)

    def _prompt_limit(self) -> int | None:
        if self.planner.spare.is_used:
            return self.chunk_time.within(MESSAGE_S)
        return self.chunk_time.limit(self.step_time.step_s) if self._has_late_comers() else None

    def _has_late_comers(self) -> bool:
        """Whether all prompts that are being computed arrived after decodes had begun to answer:
        only then must they spare these decodes. Of requests that arrived together the last one
        waits longest anyway, and long chunks bring it on soonest."""
        running = self.engine.running
        arrivals_s = [e.arrival_s for e in self.planner.backlog.seats.seated if e not in running]
        if not arrivals_s:
            return False
        earliest_s = min(arrivals_s)
        answering = [run.first_token_s for run in running.values() if run.first_token_s is not None]
        return bool(answering) and earliest_s >= min(answering)

    # -- how many steps --------------------------------------------------------------------------

    def _choose_steps(self, builder: BatchBuilder) -> list[int]:
        """The number of steps of each decode in the message. It is one if the message has anything
        else, or if something waits that could join the next one."""
        is_alone = not builder.parts and not self.planner.could_join
        num_steps = self.step_time.num_steps() if is_alone else 1
        return [self._ahead.num_steps_of(run, num_steps) or 1 for run in builder.advanced]

    # -- run ahead -------------------------------------------------------------------------------

    def _send_ahead(self) -> None:
        """Send one more message behind the running one: decode steps that depend on no token which
        is still unknown to control, and commands that programs have issued ahead."""
        (message,) = self.engine.in_flight
        builder = BatchBuilder(self.engine.next_step, self.engine.info.pool.max_batch_tokens)
        num_steps = 1 if message.parts else self.step_time.num_steps()
        max_steps = self._ahead.advance_behind(message, builder, num_steps)
        self.planner.add_behind(builder, self._ahead.next_behind(message))
        if not builder.is_empty:
            self._send(builder, max_steps)

    def _send_prompts_ahead(self) -> None:
        """Send the next message of prompts and a step of the decodes, when ``PromptsAhead`` allows
        it."""
        if self.planner.blocked or self.planner.restorer.jobs:
            return
        due_s = self._prompts.due_s()
        if due_s is None or due_s > self._time.now_s:
            self.next_dispatch_s = due_s
            return
        waiting = self.planner.prompts_to_come()
        limit = self._prompt_limit()
        if not waiting or not self._prompts.are_wanted(waiting, limit):
            return
        (message,) = self.engine.in_flight
        budget = self.engine.info.pool.max_batch_tokens
        builder = BatchBuilder(self.engine.next_step, budget, limit)
        max_steps = self._ahead.advance_behind(message, builder, 1)
        self._prompts.held_up(self.planner.add_behind(builder, waiting))
        if not builder.is_empty:
            self._send(builder, max_steps)

    # -- sending and results ---------------------------------------------------------------------

    def _send(self, builder: BatchBuilder, max_steps: list[int], *, num_charged: int = 0) -> None:
        """Send the message. ``num_charged``: how many steps of each decode the plan has charged."""
        engine = self.engine
        self.planner.charge_steps(builder.advanced, max_steps, num_charged)
        self.tiering.run()
        num_steps = max(max_steps, default=1)
        batch = builder.finish(engine.operations.take(), num_steps, max_steps, engine.advanced)
        engine.memory.transfers.note_sent(self._time.now_s)
        if engine.fenced:  # free when it has run
            builder.pins += engine.take_fenced()
        number, now_s = self.num_batches, self._time.now_s
        message = builder.in_flight(num_steps, max_steps, number, now_s)
        for part in message.parts:
            note_sent(part.entry, number, now_s)
        for run in builder.opened:
            run.num_outstanding += num_steps
        for index, run in enumerate(builder.advanced):
            note_sent(run.entry, number, now_s)
            run.num_outstanding += max_steps[index]
        engine.next_step += 1
        is_first = not engine.in_flight
        if is_first:
            self._prompts.began(now_s)
        engine.in_flight.append(message)
        self.num_batches += 1
        self.num_rows += builder.num_commands
        self.batch_sizes.add(builder.num_commands)
        self.num_tokens += message.num_tokens
        self._outbox.dispatch(engine.id, batch)
        if is_first:
            self.planner.exchange.begins(message)

    def complete(self, result: BatchResult) -> None:
        """Read the result of the oldest message in flight.

        Raises:
            EngineFault: the result is not of that message.
        """
        message = self._due(result)
        self._completion.check(message, result)
        self.engine.in_flight.popleft()
        self.engine.touch()
        self._tracer.message_ended(
            self.engine.id,
            message.number,
            message.sent_s,
            result.elapsed_s,
            message.num_commands,
            message.num_tokens,
        )
        self._prompts.began(self._time.now_s)
        self._observe_time(message, result)
        for queue in self._completion.read(message, result):
            if not queue.entries and not queue.is_closed and not queue.is_spare:
                self.anticipation.answered(queue, self._time.now_s)
        if self.engine.in_flight:
            self.planner.exchange.begins(self.engine.in_flight[0])

    def _due(self, result: BatchResult) -> InFlight:
        """The message that ``result`` answers."""
        in_flight = self.engine.in_flight
        due = in_flight[0].serial if in_flight else None
        if due != result.serial:
            raise EngineFault(
                f"engine {self.engine.id} answered message {result.serial} where {due} is due: the "
                "peer is broken, restart it"
            )
        return in_flight[0]

    def _observe_time(self, message: InFlight, result: BatchResult) -> None:
        """Learn from how long the message took what a step and a chunk take."""
        if not message.is_empty:
            self.anticipation.observe(result.elapsed_s)
        if message.restores:
            return
        if not message.parts and result.sequences is not None:
            self.step_time.observe(result.elapsed_s, _most_steps(message, result.sequences))
        elif message.parts and not message.has_image:
            num_tokens = sum(part.num_tokens for part in message.parts)
            has_decodes = message.num_advanced > 0
            self.chunk_time.observe(
                result.elapsed_s, num_tokens, self.step_time.step_s, has_decodes=has_decodes
            )

    def check_invariants(self) -> None:
        self.planner.backlog.check_invariants()
        self.planner.pausing.check_invariants()

    # -- views -----------------------------------------------------------------------------------

    def statistics(self) -> EngineStatistics:
        engine = self.engine
        return EngineStatistics(
            engine=engine.id,
            epoch=engine.epoch,
            model=engine.model,
            is_up=engine.is_up,
            pool=engine.memory.statistics(),
            prefix=engine.memory.index.statistics(),
            num_running=len(engine.running),
            num_waiting=self.planner.backlog.num_waiting,
            num_in_flight=len(engine.in_flight),
            num_open_sequences=engine.sequences.num_taken,
            num_tables=len(engine.tables),
            num_free_embeds=engine.embeds.num_free,
            num_prefetched=self.tiering.num_prefetched,
            num_preemptions=self.planner.seating.num_preemptions,
            num_paused=self.planner.pausing.num_paused,
            num_pauses=self.planner.pausing.num_pauses,
            num_working_set_blocks=self.planner.pausing.num_blocks,
            num_batches=self.num_batches,
            num_rows=self.num_rows,
            num_tokens=self.num_tokens,
            num_generated_tokens=engine.num_generated_tokens,
            batch_sizes=tuple(self.batch_sizes.counts),
            step_s=self.step_time.step_s,
            prompt_token_s=self.chunk_time.token_s,
            messages=tuple([message_statistics(message) for message in engine.in_flight]),
            exchanged=engine.exchanged.statistics(),
            num_device_tokens_sent=engine.exchanged.num_device_tokens,
            num_host_tokens_sent=engine.exchanged.num_host_tokens,
        )


def _most_steps(message: InFlight, told: SequenceTokens) -> int:
    """The number of steps of the sequence that has run the most in ``message``."""
    if message.num_steps == 1:
        return min(1, len(told.tokens))
    starts: list[int] = told.token_starts.tolist()
    num_steps = 0
    for start, stop in pairwise(starts):
        num_steps = max(num_steps, stop - start)
    return num_steps
