"""Requests of programs to encoders, and encoders that come up and go down.

Owns the encoders of the node, one scheduler for all instances of each, and the checks of a request
that arrives. The scheduler makes the batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import cast

import numpy as np

from quire.control.commands.checks import require, require_pending_room
from quire.control.commands.flow import Flow
from quire.control.engines.encode_run import EncodeRun
from quire.control.engines.encoder_pool import EncoderInstance, EncoderPool
from quire.control.engines.engine import ControlledEngine
from quire.control.event_time import EventTime
from quire.control.outbox import Outbox
from quire.control.programs.call_notes import note_call
from quire.control.programs.program import CommandQueue, Entry, Program
from quire.control.programs.table import ProcessTable
from quire.control.scheduler.encoder_scheduler import EncoderScheduler
from quire.control.scheduler.order.fairness import FairShare
from quire.control.scheduler.order.ranking import Ranking
from quire.control.statistics import EncoderStatistics, InstanceStatistics
from quire.control.tracing import Tracer
from quire.core.calls import AskEncoder
from quire.core.commands import Command
from quire.core.encoding import Encode, EncoderInfo
from quire.core.errors import (
    EngineLost,
    ErrorRecord,
    InvalidArgument,
    NeverWithinQuota,
    QuireError,
    QuotaExceeded,
    UnknownHandle,
)
from quire.core.events import BatchEncoded
from quire.core.ids import EngineId, ModelId, QueueId, TenantId
from quire.core.policy import GraphPlace


class Encoding:
    """The encoders of the node. ``places``: what queues can be placed on, shared with the
    controller."""

    def __init__(
        self,
        places: dict[EngineId, ControlledEngine],
        table: ProcessTable,
        flow: Flow,
        outbox: Outbox,
        ranking: Ranking,
        weights: Mapping[TenantId, float],
        time: EventTime,
        tracer: Tracer,
    ) -> None:
        self._places = places
        self._table = table
        self._flow = flow
        self._outbox = outbox
        self._ranking = ranking
        self._weights = weights
        self._time = time
        self._tracer = tracer
        self._schedulers: dict[ModelId, EncoderScheduler] = {}
        self._models: dict[EngineId, ModelId] = {}
        self._given_up: dict[ModelId, dict[EngineId, None]] = defaultdict(dict)

    # -- instances ---------------------------------------------------------------------------------

    def up(self, engine: EngineId, model: ModelId, info: EncoderInfo) -> None:
        scheduler = self._schedulers.get(model)
        if scheduler is None:
            scheduler = self._schedulers[model] = self._scheduler(model, info)
        pool = scheduler.pool
        known = pool.instances.get(engine)
        if known is not None and known.is_up:
            scheduler.lose(known)
        if known is None:
            known = pool.instances[engine] = EncoderInstance(engine)
            self._models[engine] = model
        known.is_up = True
        pool.given_up = None  # it may come up for the first time when others have been given up

    def _scheduler(self, model: ModelId, info: EncoderInfo) -> EncoderScheduler:
        pool = EncoderPool(model, info)
        self._places[pool.id] = pool
        return EncoderScheduler(
            pool,
            FairShare(self._weights),
            self._ranking,
            self._flow,
            self._outbox,
            self._time,
            self._tracer,
        )

    def down(self, engine: EngineId) -> bool:
        """Note that ``engine`` is down. False: it is no instance of an encoder."""
        model = self._models.get(engine)
        if model is None:
            return False
        scheduler = self._schedulers[model]
        instance = scheduler.pool.instances[engine]
        if instance.is_up:
            scheduler.lose(instance)
        return True

    def given_up(self, engine: EngineId, model: ModelId, error: ErrorRecord) -> None:
        """Note that one instance will not come back. With the last of those that were ever up,
        every waiting command fails."""
        scheduler = self._schedulers.get(model)
        if scheduler is None:
            return  # none was ever up, and no command waits
        self._given_up[model][engine] = None
        if self._given_up[model].keys() >= scheduler.pool.instances.keys():
            scheduler.give_up(error)

    def completed(self, event: BatchEncoded) -> None:
        """Read the result of a batch. Raises ``EngineFault`` if it belongs to no batch."""
        model = self._models.get(event.engine)
        if model is None:
            return
        scheduler = self._schedulers[model]
        if scheduler.pool.instances[event.engine].is_up:
            scheduler.complete(event.engine, event.result)

    # -- requests ----------------------------------------------------------------------------------

    def asked(self, program: Program, call: AskEncoder) -> None:
        """Take the request in, or answer it with its failure."""
        try:
            self._take(program, call)
        except QuireError as error:
            self._outbox.fail(program.id, call.command.id, error.record())

    def _take(self, program: Program, call: AskEncoder) -> None:
        command = call.command
        scheduler = self._schedulers.get(call.model)
        if scheduler is None:
            served = ", ".join(sorted(self._schedulers)) or "none"
            raise UnknownHandle(f"no encoder serves {call.model!r}; there are: {served}")
        pool = scheduler.pool
        if pool.given_up is not None:
            why = pool.given_up.message
            raise EngineLost(f"encoder {call.model} cannot be served: {why}")
        if command.id in program.ended or command.id in program.entries:
            raise InvalidArgument(f"command id {command.id} was used before: choose a new one")
        require_pending_room(program)
        check_sequences(command, pool.info)
        _check_pending(program, pool, len(command.lengths))
        queue = CommandQueue(
            QueueId(command.id),
            program,
            call.model,
            call.thread,
            GraphPlace(call.depth, call.invocation, call.remaining_us),
            call.priority,
            0,
        )
        queue.placed_on = pool.id
        entry = Entry(cast(Command, command), queue, self._time.now_s)  # only its id is read
        self._table.add_entry(entry, self._time.now_s)
        note_call(entry)
        pool.enter(EncodeRun(entry, command))
        self._flow.advance(queue)

    def cancel_all(self, program: Program, reason: str) -> None:
        """Cancel the requests of ``program``, which ends."""
        for entry in list(program.entries.values()):
            if isinstance(entry.run, EncodeRun):
                self._flow.cancel(entry, reason)

    def pump(self) -> None:
        """Send the batches that may be sent."""
        for scheduler in self._schedulers.values():
            scheduler.pump()

    def due_s(self) -> list[float]:
        """The times at which batches that were held back may be sent."""
        schedulers = self._schedulers.values()
        return [at for one in schedulers if (at := one.next_dispatch_s) is not None]

    # -- views -------------------------------------------------------------------------------------

    def statistics(self) -> tuple[EncoderStatistics, ...]:
        return tuple(_statistics(scheduler) for scheduler in self._schedulers.values())

    def check_invariants(self) -> None:
        for scheduler in self._schedulers.values():
            scheduler.check_invariants()


def check_sequences(command: Encode, info: EncoderInfo) -> None:
    """Check the sequences of ``command`` before they share a batch with those of other commands.

    Raises:
        InvalidArgument: a sequence that the model cannot run.
    """
    tokens, types, lengths = command.tokens, command.types, command.lengths
    require(len(lengths) > 0, "encode needs at least one sequence")
    for index in np.flatnonzero((lengths < 1) | (lengths > info.max_tokens))[:1].tolist():
        raise InvalidArgument(
            f"sequence {index} has {lengths[index]} tokens; the model reads 1 to {info.max_tokens}"
        )
    require(
        len(tokens) == len(types) == int(lengths.sum()),
        f"{len(tokens)} tokens and {len(types)} types for sequences of {lengths.sum()}",
    )
    for index in np.flatnonzero((tokens < 0) | (tokens >= info.vocab_size))[:1].tolist():
        sequence = _sequence_of(index, command)
        raise InvalidArgument(
            f"sequence {sequence} has token {tokens[index]}, but the model has {info.vocab_size} "
            "tokens"
        )
    for index in np.flatnonzero((types < 0) | (types >= info.num_types))[:1].tolist():
        sequence = _sequence_of(index, command)
        raise InvalidArgument(
            f"sequence {sequence} is of {types[index] + 1} segments; the model tells "
            f"{info.num_types} apart"
        )


def _sequence_of(token: int, command: Encode) -> int:
    return int(np.searchsorted(np.cumsum(command.lengths), token, side="right"))


def _check_pending(program: Program, pool: EncoderPool, num_more: int) -> None:
    num_pending, most = pool.num_pending.get(program.tenant, 0), pool.info.max_pending
    if num_pending + num_more > most:
        is_alone = num_more > most
        kind = NeverWithinQuota if is_alone else QuotaExceeded
        raise kind(
            f"{num_pending} sequences of this tenant are waiting for this encoder and {num_more} "
            f"more are asked for; at most {most} are allowed: send fewer"
            f"{'' if is_alone else ', or try again'}"
        )


def _statistics(scheduler: EncoderScheduler) -> EncoderStatistics:
    pool = scheduler.pool
    return EncoderStatistics(
        model=pool.model,
        kind=pool.info.kind,
        num_waiting=len(scheduler.waiting),
        num_pending_sequences=sum(pool.num_pending.values()),
        instances=tuple(
            InstanceStatistics(
                engine=one.id,
                is_up=one.is_up,
                num_in_flight=len(one.in_flight),
                num_batches=one.num_batches,
                num_short_batches=one.num_short_batches,
                num_sequences=one.num_sequences,
                num_tokens=one.num_tokens,
                busy_s=one.busy_s,
                num_reused_tokens=one.num_reused_tokens,
                cache_bytes=one.cache_bytes,
            )
            for one in pool.instances.values()
        ),
    )
