"""The scheduler of one encoder: what goes into a batch, when, and how commands go on behind it.

Owns the order of the commands that wait: tenants by their fair share of the encoder in tokens,
within one by priority and the policy. A batch is filled to the encoder's limit with sequences of
the command that is next in order, and sent when an instance is idle, or is about to be. Encoding is
pure: what a lost instance was computing is computed again, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import numpy as np

from quire.control.commands.flow import Flow
from quire.control.engines.encode_run import EncodePart, EncodeRun
from quire.control.engines.encoder_pool import EncodeMessage, EncoderInstance, EncoderPool
from quire.control.event_time import EventTime
from quire.control.outbox import Outbox
from quire.control.placement.instances import least_loaded, share_of_batch
from quire.control.programs.program import Entry, Program
from quire.control.programs.service import charge, note_sent
from quire.control.programs.states import ENDS
from quire.control.scheduler.order.fair_order import FairOrder
from quire.control.scheduler.order.fairness import FairShare
from quire.control.scheduler.order.ranking import Ranking
from quire.control.scheduler.timing.batches_ahead import next_due_s
from quire.control.scheduler.timing.encode_time import EncodeTime
from quire.control.scheduler.timing.short_batches import ShortBatches
from quire.control.tracing import Tracer
from quire.core.encoding import EncodeBatch, Encoded, EncodeResult
from quire.core.errors import EngineFault, EngineLost, ErrorRecord
from quire.core.ids import EngineId

SPARE_SHARE = 4
"""A batch of spare requests is smaller than another one by this factor, because requests that
arrive meanwhile wait for its end."""

MAX_COUNTED = 64
"""How many of the waiting commands are examined to count the programs that lose by a short
batch."""


class EncoderScheduler:
    """Schedules all instances of one encoder. ``pump`` sends what may be sent now."""

    def __init__(
        self,
        pool: EncoderPool,
        share: FairShare,
        ranking: Ranking,
        flow: Flow,
        outbox: Outbox,
        time: EventTime,
        tracer: Tracer,
    ) -> None:
        self.pool = pool
        self.waiting = FairOrder(share, staged=ranking.is_staged)
        self._share = share
        self._ranking = ranking
        self._flow = flow
        self._outbox = outbox
        self._time = time
        self._tracer = tracer
        self._batch_time = EncodeTime()
        self._short = ShortBatches(self._batch_time)
        self.next_dispatch_s: float | None = None
        """When a batch that was held back may be sent; None if none is."""

    # -- who waits -------------------------------------------------------------------------------

    def sync(self) -> None:
        """Take in the queues and commands that have changed since the last call."""
        pool = self.pool
        for entry in pool.take_ended():
            self.waiting.discard(entry)
            self._ranking.ended(entry)
        for queue in pool.ready.take_changed():
            entry_ = queue.next_entry if queue in pool.ready else None
            if entry_ is not None and entry_.rank is None:
                entry_.placed_in = self
                self._ranking.arrive(entry_)
                self.waiting.add(entry_)
        if self._ranking.changed:
            self._rank_anew()

    def _rank_anew(self) -> None:
        changed = self._ranking.changed
        for entry in [entry for entry in changed if entry.placed_in is self]:
            del changed[entry]
            is_waiting = self.waiting.discard(entry)
            self._ranking.set_rank(entry, self._ranking.rank_now(entry))
            if is_waiting:
                self.waiting.add(entry)

    # -- batches out -----------------------------------------------------------------------------

    def pump(self) -> None:
        self.sync()
        pool = self.pool
        self.next_dispatch_s = None
        while (entry := self.waiting.first()) is not None:
            instance = self._instance()
            if instance is None or (entry.queue.is_spare and not instance.is_idle):
                return
            self._share.advance([entry.program.tenant])
            limit = share_of_batch(
                pool.instances.values(), pool.num_waiting_tokens, pool.info.max_batch_tokens
            )
            parts, is_short = self._choose(limit // SPARE_SHARE if entry.queue.is_spare else limit)
            if parts:
                self._send(instance, parts, is_short)

    def _instance(self) -> EncoderInstance | None:
        """The instance for the next batch; None if none can take it yet (see
        ``next_dispatch_s``)."""
        now_s = self._time.now_s
        instances = [one for one in self.pool.instances.values() if one.has_room]
        due_s = {one: self._due_s(one) for one in instances}
        found = least_loaded([one for one in instances if due_s[one] <= now_s])
        if found is None:
            self.next_dispatch_s = min(due_s.values(), default=None)
        return found

    def _due_s(self, instance: EncoderInstance) -> float:
        """When the next batch may be sent to ``instance``."""
        if instance.is_idle:
            return self._time.now_s
        expected_s = self._batch_time.expected_s(instance.in_flight[0].num_tokens)
        return next_due_s(instance.began_s, expected_s)

    def _choose(self, limit: int) -> tuple[list[EncodePart], bool]:
        """Take one sequence after the other of the command that is next in order, up to ``limit``
        tokens. Return the parts, and whether the batch is short: it leaves out a command for which
        it has room. A sequence that does not fit keeps its tenant's turn."""
        parts: list[EncodePart] = []
        programs: dict[Program, bool] = {}
        num_tokens = 0
        self.waiting.begin()
        while (entry := self.waiting.first()) is not None:
            run = entry.run
            assert isinstance(run, EncodeRun)
            if parts and entry.queue.is_spare and not parts[0].run.entry.queue.is_spare:
                break
            if entry.is_cancelled or entry.error is not None:
                self.waiting.discard(entry)  # it ends with its last batch
                continue
            length = run.next_length
            if parts and num_tokens + length > limit:
                break
            if self._goes_without(entry.program, programs, limit - num_tokens):
                self._short.spend()
                return parts, True
            num_tokens += length
            _append(parts, self.pool.take(run))
            self._share.charge(entry.program.tenant, length)
            programs[entry.program] = not run.is_waiting
            if not run.is_waiting:
                self.waiting.take(entry)
        return parts, False

    def _goes_without(self, program: Program, programs: Mapping[Program, bool], room: int) -> bool:
        """Whether a batch of ``programs`` (with each: whether it has the last part of a command) is
        sent with ``room`` left, though ``program`` is next. Without stages the policy does not know
        which program waits for what, so batches are filled."""
        if not self._ranking.is_staged or program in programs or not self._short.may_go():
            return False
        num_completed = sum(programs.values())
        num_more_tokens = min(room, self.pool.num_waiting_tokens)
        if not self._short.is_worth(num_completed, num_more_tokens, 1):
            return False
        waiting = {one.program for one in islice(self.waiting, MAX_COUNTED)}
        return self._short.is_worth(num_completed, num_more_tokens, len(waiting))

    def _send(self, instance: EncoderInstance, parts: list[EncodePart], is_short: bool) -> None:
        pool = self.pool
        message = EncodeMessage(pool.next_number, parts, self._time.now_s, is_short=is_short)
        pool.next_number += 1
        for entry in message.entries():
            self._flow.start(entry)
            note_sent(entry, message.number, self._time.now_s)
        if instance.is_idle:
            instance.began_s = self._time.now_s
        instance.in_flight.append(message)
        instance.num_batches += 1
        instance.num_short_batches += is_short
        instance.num_sequences += message.num_sequences
        instance.num_tokens += message.num_tokens
        self._outbox.dispatch(instance.id, self._batch_of(message))

    def _batch_of(self, message: EncodeMessage) -> EncodeBatch:
        parts = message.parts
        owners = [self.pool.owner(part.run.entry.program.tenant) for part in parts]
        lengths = [part.run.command.lengths[part.start : part.stop] for part in parts]
        return EncodeBatch(
            number=message.number,
            tokens=np.concatenate([part.cut(part.run.command.tokens) for part in parts]),
            types=np.concatenate([part.cut(part.run.command.types) for part in parts]),
            lengths=np.concatenate(lengths),
            owners=np.repeat(np.asarray(owners, np.int32), list(map(len, lengths))),
        )

    # -- rows back -------------------------------------------------------------------------------

    def complete(self, engine: EngineId, result: EncodeResult) -> None:
        """Read the result of the oldest batch of an instance.

        Raises:
            EngineFault: the result is not of that batch.
        """
        instance = self.pool.instances[engine]
        due = instance.in_flight[0] if instance.in_flight else None
        if due is None or not _fits(result, due):
            raise EngineFault(
                f"encoder {engine} answered batch {result.number} with {len(result.rows)} rows "
                f"where {due.number if due else None} is due: the peer is broken, restart it"
            )
        instance.in_flight.popleft()
        instance.began_s = self._time.now_s
        instance.busy_s += result.elapsed_s
        instance.num_reused_tokens += result.num_reused_tokens
        instance.cache_bytes = result.cache_bytes
        if result.error is None:
            self._batch_time.observe(due.num_tokens, result.elapsed_s)
            self._short.earn(result.elapsed_s)
        self._tracer.message_ended(
            self.pool.id,
            due.number,
            due.sent_s,
            result.elapsed_s,
            len(due.entries()),
            due.num_tokens,
        )
        for entry in due.entries():
            entry.num_in_flight -= 1
        self._charge(due, result.elapsed_s)
        if result.error is None:
            self._deliver(due, result)
        else:
            self._fail(due, result.error)

    def _charge(self, message: EncodeMessage, elapsed_s: float) -> None:
        shares: dict[Entry, int] = {}
        for part in message.parts:
            entry = part.run.entry
            shares[entry] = shares.get(entry, 0) + part.num_tokens
        charge(list(shares), list(shares.values()), elapsed_s)
        for entry, num_tokens in shares.items():
            entry.program.num_encoded_tokens += num_tokens
            entry.num_prefilled_tokens += num_tokens
            entry.ready_s = self._time.now_s
            self._ranking.served(entry, num_tokens, elapsed_s)

    def _deliver(self, message: EncodeMessage, result: EncodeResult) -> None:
        row = 0
        for part in message.parts:
            run, first = part.run, row
            row += part.stop - part.start
            run.num_left -= part.stop - part.start
            rows = result.rows[first:row]
            reply = Encoded(
                first=part.start, rows=rows, batch=message.number, is_short=message.is_short
            )
            entry = run.entry
            if not run.num_left and entry.is_wanted:
                self._flow.finish(entry, reply)
            elif entry.is_wanted:
                self._outbox.deliver(entry.program.id, entry.id, reply, last=False)
        self._end_unwanted(message)

    def _fail(self, message: EncodeMessage, error: ErrorRecord) -> None:
        for entry in message.entries():
            if entry.error is None:
                entry.error = error
        self._end_unwanted(message)

    def _end_unwanted(self, message: EncodeMessage) -> None:
        """End commands that failed or were cancelled and are in no batch in flight."""
        for entry in message.entries():
            if entry.num_in_flight or entry.state in ENDS:
                continue
            if entry.error is not None:
                self._flow.fail(entry, entry.error)
            elif not entry.is_wanted:
                self._flow.end_cancelled(entry, "by its program")

    # -- losses ----------------------------------------------------------------------------------

    def lose(self, instance: EncoderInstance) -> None:
        """Put the batches of a lost instance back; the instance that is free first computes them
        again."""
        instance.is_up = False
        instance.cache_bytes = 0
        messages = list(instance.in_flight)
        instance.in_flight.clear()
        for message in messages:
            for entry in message.entries():
                entry.num_in_flight -= 1
        for message in reversed(messages):
            for part in reversed(message.parts):
                self._lose_part(part)
            self._end_unwanted(message)

    def _lose_part(self, part: EncodePart) -> None:
        entry = part.run.entry
        if part.num_losses:
            model = self.pool.model
            words = f"encoder {model} was lost twice while it ran this request"
            entry.error = entry.error or EngineLost(words).record()
        elif entry.is_wanted:
            self.pool.put_back(part)
            if entry not in self.waiting:
                self.waiting.add(entry)

    def give_up(self, error: ErrorRecord) -> None:
        """Fail all commands that wait, as no instance will come back."""
        self.pool.given_up = error
        self.sync()
        for entry in list(self.waiting):
            self._flow.fail(entry, error)

    def check_invariants(self) -> None:
        self.pool.check_invariants()
        self.waiting.check_invariants()
        if self.pool.ended or self.pool.ready.has_changed:
            return  # more events of this moment follow
        runs = [entry.run for entry in self.waiting if isinstance(entry.run, EncodeRun)]
        assert len(runs) == len(self.waiting), "a command waits that has ended"
        assert all(run.is_waiting for run in runs), "a command waits without a sequence"


def _append(parts: list[EncodePart], part: EncodePart) -> None:
    """Join ``part`` to the one before it, if that ends where it begins."""
    last = parts[-1] if parts else None
    if (
        last is not None
        and last.run is part.run
        and last.stop == part.start
        and last.num_losses == part.num_losses
    ):
        last.stop = part.stop
    else:
        parts.append(part)


def _fits(result: EncodeResult, message: EncodeMessage) -> bool:
    has_rows = result.error is not None or len(result.rows) == message.num_sequences
    return result.number == message.number and has_rows
