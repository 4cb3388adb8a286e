"""Tells a listener of programs, and of calls, messages and transfers that have ended.

Owns how a record is made from what control keeps of a command. Without a listener nothing is made.
Must not know what becomes of the records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from quire.control.commands.host_commands import HOST_COMMANDS
from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.memory.transfers import Transfer
from quire.control.programs.call_notes import message_spans
from quire.control.programs.program import Entry, Program
from quire.control.programs.states import ENDS, CommandState
from quire.core.events import ProgramStarted
from quire.core.exchange import ReceiveEnded, SendEnded
from quire.core.ids import EngineId, ProgramId
from quire.core.tracing import CallOutcome, CallRecord, MessageRecord, TraceListener, TransferRecord

_OUTCOMES: dict[CommandState, CallOutcome] = {
    CommandState.DONE: "done",
    CommandState.FAILED: "failed",
    CommandState.CANCELLED: "cancelled",
}


class Tracer:
    """Makes the records. ``listener`` None: none are made."""

    def __init__(self, listener: TraceListener | None, time: EventTime) -> None:
        self._listener = listener
        self._time = time
        self._kinds: dict[type, str] = {}

    def program_started(self, started: ProgramStarted) -> None:
        if self._listener is not None:
            self._listener.program_started(started)

    def program_ended(self, program: Program, reason: str) -> None:
        if self._listener is not None:
            self._listener.program_ended(program.id, self._time.now_s, reason)

    def call_ended(self, entry: Entry) -> None:
        """Report ``entry``, which has ended; its run still exists."""
        if self._listener is not None and is_call(entry):
            self._listener.call_ended(self._record(entry))

    def message_ended(
        self,
        engine: EngineId,
        number: int,
        sent_s: float,
        elapsed_s: float,
        num_commands: int,
        num_tokens: int,
    ) -> None:
        if self._listener is None:
            return
        now_s = self._time.now_s
        record = MessageRecord(
            engine=engine,
            number=number,
            sent_s=sent_s,
            start_s=max(sent_s, now_s - elapsed_s),
            end_s=now_s,
            num_commands=num_commands,
            num_tokens=num_tokens,
        )
        self._listener.message_ended(record)

    def transfers_ended(
        self, engine: EngineState, transfers: Iterable[Transfer], *, is_lost: bool = False
    ) -> None:
        """Report ``transfers``, in one record for those that began together, for one program, in
        one direction."""
        if self._listener is None:
            return
        num_blocks: dict[tuple[ProgramId | None, bool, bool, bool, float], int] = {}
        now_s = self._time.now_s
        for transfer in transfers:
            sent_s = now_s if transfer.sent_s is None else transfer.sent_s
            comes, fails = transfer.comes_to_device, is_lost or transfer.has_failed
            group = (transfer.program, comes, transfer.uses_disk, fails, sent_s)
            num_blocks[group] = num_blocks.get(group, 0) + 1
        bytes_per_block = engine.info.pool.groups[0].bytes_per_block
        for (program, comes, uses_disk, fails, sent_s), num in num_blocks.items():
            record = TransferRecord(
                program=program,
                engine=engine.id,
                direction="in" if comes else "out",
                num_blocks=num,
                num_bytes=num * bytes_per_block,
                start_s=sent_s,
                end_s=now_s,
                is_lost=fails,
                tier="disk" if uses_disk else "host",
            )
            self._listener.transfer_ended(record)

    def exchange_ended(self, engine: EngineState, ended: SendEnded | ReceiveEnded) -> None:
        """Report what was sent to another engine; ``engine`` still has the send. What has come from
        another one is for no program yet."""
        run = engine.sends.get(ended.send) if isinstance(ended, SendEnded) else None
        if self._listener is None or run is None:
            return
        entry, now_s = run.entry, self._time.now_s
        record = TransferRecord(
            program=entry.program.id,
            engine=engine.id,
            direction="out",
            num_blocks=len(run.contents) + len(run.host_blocks),
            num_bytes=ended.num_bytes,
            start_s=now_s if entry.sent_s is None else entry.sent_s,
            end_s=now_s,
            is_lost=ended.error is not None,
            tier="engine",
            transport=ended.transport,
        )
        self._listener.transfer_ended(record)

    def under_way(self, program: Program) -> tuple[CallRecord, ...]:
        """The records of the calls of ``program`` that have not ended."""
        return tuple([self._record(entry) for entry in program.entries.values() if is_call(entry)])

    def _record(self, entry: Entry) -> CallRecord:
        run, queue = entry.run, entry.queue
        first_token_s: float | None = None
        num_cached, num_generated = 0, entry.num_generated_tokens
        if isinstance(run, DecodeRun):
            first_token_s, num_cached = run.first_token_s, run.num_cached
            num_generated = run.num_generated
        return CallRecord(
            program=entry.program.id,
            command=entry.id,
            kind=self._kind(type(entry.command)),
            model=queue.model,
            engine=queue.placed_on,
            thread=queue.thread,
            arrival_s=entry.arrival_s,
            sent_s=entry.sent_s,
            first_token_s=first_token_s,
            end_s=self._time.now_s if entry.state in ENDS else None,
            waiting_s=entry.waiting_s,
            service_s=entry.service_s,
            num_prefilled_tokens=entry.num_prefilled_tokens,
            num_cached_tokens=num_cached,
            num_generated_tokens=num_generated,
            num_preemptions=entry.num_preemptions,
            idle_since_s=entry.idle_since_s,
            messages=message_spans(entry),
            outcome=_OUTCOMES.get(entry.state),
            error=entry.error if entry.state is CommandState.FAILED else None,
        )

    def _kind(self, command: type) -> str:
        known = self._kinds.get(command)
        if known is None:
            known = self._kinds[command] = re.sub(r"(?<!^)(?=[A-Z])", "_", command.__name__).lower()
        return known


def is_call(entry: Entry) -> bool:
    """Whether ``entry`` needs an engine."""
    return type(entry.command) not in HOST_COMMANDS
