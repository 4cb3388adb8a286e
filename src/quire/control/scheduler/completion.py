"""Reads results: what a message did, to which commands it belongs, and how each command goes on.

Owns the way from a message back to its commands; ``replies`` makes their answers. It starts nothing
new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quire.control.commands.flow import Flow
from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.forward_run import ForwardRun
from quire.control.engines.in_flight import CommandItems, InFlight, MessageStage
from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.outbox import Outbox
from quire.control.programs.families import (
    count_tokens,
    has_token_bound,
    num_tokens_left,
    require_tokens,
)
from quire.control.programs.program import CommandQueue, Entry
from quire.control.programs.service import charge
from quire.control.scheduler.exchange import ExchangeScheduler
from quire.control.scheduler.order.ranking import Ranking
from quire.control.scheduler.pausing.gate import ProgramGate
from quire.control.scheduler.reclaiming.restorer import Restorer
from quire.control.scheduler.replies import (
    FINISH_REASONS,
    matched_stop,
    prompt_logprobs,
    reply_of,
    sampled_logprobs,
)
from quire.control.scheduler.waiting.admission import Admission
from quire.core.batch_result import BatchResult, SequenceEnd, SequenceTokens
from quire.core.decoding import TokenLogprobs
from quire.core.errors import EngineFault, ErrorRecord, NeverWithinQuota

_FORWARD, _OPERATIONS = MessageStage.FORWARD, MessageStage.OPERATIONS
"""Bound once: Python 3.11 looks up a member of an enum at each use, which costs more than the
use."""

_ENDS = list(SequenceEnd)
"""The ends by value, which counts from 0."""

Failures = Mapping[tuple[str, int], ErrorRecord]
"""What has failed in a message: errors by stage and index."""

_RUNNING, _FAILED = SequenceEnd.RUNNING, SequenceEnd.FAILED


class ResultReader:
    """Reads the results of one engine."""

    def __init__(
        self,
        engine: EngineState,
        restorer: Restorer,
        flow: Flow,
        ranking: Ranking,
        admission: Admission,
        gate: ProgramGate,
        exchange: ExchangeScheduler,
        outbox: Outbox,
        time: EventTime,
    ) -> None:
        self._engine = engine
        self._exchange = exchange
        self._restorer = restorer
        self._flow = flow
        self._ranking = ranking
        self._admission = admission
        self._gate = gate
        self._outbox = outbox
        self._time = time

    def check(self, message: InFlight, result: BatchResult) -> None:
        """Raise ``EngineFault`` if ``result`` cannot be that of ``message``, before anything of it
        is read: a message that is read in part is neither answered nor in flight, and its other
        commands would wait for ever."""
        failures = _failures_of(result)
        for part in message.parts:
            if part.scored is not None and _failure_of(part, failures) is None:
                part.scored.check(result)
        reported = result.sequences
        num_told = 0 if reported is None else len(reported.sequences)
        if message.runs and num_told != len(message.runs):
            raise EngineFault(
                f"engine {self._engine.id} reports {num_told} sequences for message "
                f"{message.serial}, which has {len(message.runs)}: the peer is broken, restart it"
            )

    def read(self, message: InFlight, result: BatchResult) -> Iterable[CommandQueue]:
        """Account for everything in ``message``, end the commands that have ended, and let queues
        go on; return these queues."""
        failures = _failures_of(result)
        message.came_back()
        self._settle_memory(message, failures)
        self._charge(message, result)
        queues = {part.entry.queue: None for part in message.parts}
        for part in message.parts:
            error = _failure_of(part, failures) if failures else None
            self._read_part(part, result, error)
        self._read_sequences(message, result, failures)
        # a decode that goes on leaves its queue as it was
        queues |= {run.entry.queue: None for run in message.runs if run.entry.run is not run}
        for queue in queues:
            self._flow.advance(queue)
        return queues

    def _settle_memory(self, message: InFlight, failures: Failures) -> None:
        """Add the pages that the message has filled to the prefix index, and unpin what it used."""
        if not any(stage == "forward" for stage, _ in failures):
            self._engine.memory.add_to_index(message.filled)
        if failures:  # messages that were sent ahead may depend on what was not written
            for later in self._engine.in_flight:
                later.filled.clear()
        self._engine.memory.unpin_all(message.pins)
        for restored in message.restores:
            if ("forward", restored.row) in failures:
                self._restorer.fail(restored.contents)

    def _charge(self, message: InFlight, result: BatchResult) -> None:
        """Charge the message to the commands that it served, and recomputation to the command that
        needed it. Report it to the policy."""
        entries: list[Entry] = []
        num_tokens: list[int] = []
        for part in message.parts:
            if part.num_tokens:
                entries.append(part.entry)
                num_tokens.append(part.num_tokens)
                if part.stage is _FORWARD:
                    part.entry.num_prefilled_tokens += part.num_tokens
                    part.entry.program.num_prefilled_tokens += part.num_tokens
        first = message.num_opened
        entries += [run.entry for run in message.runs[first:]]
        num_tokens += message.steps[first:]
        for restored in message.restores:
            entries.append(restored.requester)
            num_tokens.append(restored.num_tokens)
        elapsed_s, now_s = result.elapsed_s, self._time.now_s
        charge(entries, num_tokens, elapsed_s)
        for index, entry in enumerate(entries):
            entry.ready_s = now_s
            self._ranking.served(entry, num_tokens[index], elapsed_s)

    # -- parts -----------------------------------------------------------------------------------

    def _read_part(
        self, part: CommandItems, result: BatchResult, error: ErrorRecord | None
    ) -> None:
        entry = part.entry
        if error is not None:
            self._undo(part)
            self._end(entry, error)
            return
        if entry.error is not None:  # it was sent behind a command that failed, and fails with it
            self._undo(part)
        if part.scored is not None and isinstance(entry.run, ForwardRun):
            assert entry.run.scores is not None
            entry.run.scores.add(part.scored, result)
        if isinstance(entry.run, DecodeRun):
            self._read_prompt(entry, entry.run, part, result)
        elif part.is_final:
            self._flow.finish(entry, reply_of(part, result))
        elif part.stage is _OPERATIONS:  # it ends when another engine has its tokens
            if not self._exchange.read(entry):
                self._end_if_unwanted(entry)
        else:
            self._end_if_unwanted(entry)

    def _undo(self, part: CommandItems) -> None:
        """Take back what the failed command was to write."""
        for page, fill in part.undo:
            if page.fill > fill:
                page.truncate(fill)
                if page.content is not None and not page.content.indexed:
                    page.content.forget_tokens_from(fill)
        self._engine.forget_written(part.entry)

    def _read_prompt(
        self, entry: Entry, run: DecodeRun, part: CommandItems, result: BatchResult
    ) -> None:
        if run.prompt_logprobs is not None and len(result.score_logprobs):
            run.prompt_logprobs += prompt_logprobs(run, part, result)
        if part.is_final and not run.is_open:
            self._flow.finish(entry, run.chunk([], None, "length", None))
        else:
            self._end_if_unwanted(entry)

    # -- sequences -------------------------------------------------------------------------------

    def _read_sequences(
        self,
        message: InFlight,
        result: BatchResult,
        failures: Failures,
    ) -> None:
        if not message.runs:
            return
        reported = result.sequences
        assert reported is not None, "a result is checked before it is read"
        # as lists at once: reading numbers one by one from arrays costs more than all else here
        starts, all_tokens = reported.token_starts.tolist(), reported.tokens.tolist()
        epochs, ends = reported.epochs.tolist(), reported.ends.tolist()
        for index, run in enumerate(message.runs):
            if run.entry.run is run and run.is_open and run.epoch == epochs[index]:
                advanced = index - message.num_opened
                error = failures.get(("advance", advanced)) if failures else None
                tokens = all_tokens[starts[index] : starts[index + 1]]
                self._read_sequence(run, index, reported, tokens, _ENDS[ends[index]], error)

    def _read_sequence(
        self,
        run: DecodeRun,
        index: int,
        reported: SequenceTokens,
        tokens: list[int],
        end: SequenceEnd,
        error: ErrorRecord | None,
    ) -> None:
        entry = run.entry
        if run.first_token_s is None:
            run.first_token_s = self._time.now_s
        over_quota: ErrorRecord | None = None
        if has_token_bound(entry.program):
            tokens, over_quota = self._within_quota(entry, tokens)
        else:  # the usual case
            count_tokens(entry, len(tokens))
        self._engine.num_generated_tokens += len(tokens)
        self._append(run, tokens)
        logprobs = None
        if run.num_logprobs is not None:
            logprobs = sampled_logprobs(run.num_logprobs, reported, index, tokens)
        if over_quota is not None:
            self._deliver(run, tokens, logprobs)
            self._end(entry, over_quota)
        elif end is _FAILED or error is not None:
            self._deliver(run, tokens, logprobs)
            self._end(entry, error or _unexplained(run))
        elif end is _RUNNING or entry.is_cancelled:
            self._deliver(run, tokens, logprobs)
            self._end_if_unwanted(entry)
        else:
            matched = matched_stop(run, end, int(reported.matched[index]))
            chunk = run.last_chunk(tokens, logprobs, FINISH_REASONS[end], matched)
            self._admission.ended(run.num_generated, run.max_tokens)
            self._gate.finished(run)
            self._flow.finish(entry, chunk)

    def _within_quota(
        self, entry: Entry, tokens: list[int]
    ) -> tuple[list[int], ErrorRecord | None]:
        """``tokens`` as far as the program's quotas allow, and the error if they cut them."""
        allowed = tokens[: num_tokens_left(entry.program)]
        count_tokens(entry, len(allowed))
        try:
            require_tokens(entry.program, len(tokens) - len(allowed))
        except NeverWithinQuota as error:
            return allowed, error.record()
        return allowed, None

    def _append(self, run: DecodeRun, tokens: list[int]) -> None:
        """Append sampled ``tokens``: all before the last one have K and V by now."""
        run.output += tokens
        num_new = run.num_to_run - 1
        if num_new <= 0:
            return
        position = run.position
        output = run.output
        is_next = num_new == 1 and len(output) > 1
        if is_next and run.cursor.record_next(position, output[-2]):
            run.num_run += 1
            run.next_slot += 1
            return
        new = run.tokens_between(run.num_run, run.num_tokens - 1)
        filled = run.cursor.record(range(position, position + num_new), new)
        run.num_run += num_new
        run.next_slot += num_new
        if filled and run.command.cache:
            self._engine.memory.add_to_index(filled)

    def _deliver(
        self, run: DecodeRun, tokens: list[int], logprobs: list[TokenLogprobs] | None
    ) -> None:
        entry = run.entry
        if not run.streams:
            run.keep(logprobs)
        elif tokens and not entry.is_answered:
            chunk = run.chunk(tokens, logprobs, None, None)
            self._outbox.deliver(entry.program.id, entry.id, chunk, last=False)

    # -- ends ------------------------------------------------------------------------------------

    def _end(self, entry: Entry, error: ErrorRecord) -> None:
        """End ``entry`` as failed once no message in flight carries it."""
        if entry.error is None:
            entry.error = error
        self._end_if_unwanted(entry)

    def _end_if_unwanted(self, entry: Entry) -> None:
        """End ``entry`` if it failed or was cancelled and no message in flight carries it."""
        if entry.num_in_flight:
            return
        if entry.error is not None:
            self._flow.fail(entry, entry.error)
        elif entry.is_cancelled or entry.is_answered:
            self._flow.end_cancelled(entry, "by its program")


def _failures_of(result: BatchResult) -> Failures:
    return {(failure.stage, failure.index): failure.error for failure in result.failures}


def _failure_of(part: CommandItems, failures: Failures) -> ErrorRecord | None:
    """The error of the first of its items that failed."""
    items = ((part.stage.value, index) for index in range(part.start, part.stop))
    return next((failures[item] for item in items if item in failures), None)


def _unexplained(run: DecodeRun) -> ErrorRecord:
    return EngineFault(
        f"the engine gave up on command {run.entry.id} without a reason: see its log"
    ).record()
