"""The API's bodies about the traces of programs."""

from __future__ import annotations

from quire.core.tracing import CallRecord, MessageRecord, TransferRecord
from quire.node import NodeTrace, waits
from quire.node import TracedProgram as Traced
from quire.server.schemas.traces import (
    ProgramTrace,
    TraceCall,
    TracedProgram,
    TraceError,
    TraceMessage,
    TraceTransfer,
    TraceWait,
)


def trace_body(trace: NodeTrace) -> ProgramTrace:
    offset_s = trace.unix_offset_s
    return ProgramTrace(
        object="program.trace",
        time=trace.unix_s,
        programs=[_program(one, offset_s) for one in trace.programs],
        messages=[_message(one, offset_s) for one in trace.messages],
    )


def _program(one: Traced, offset_s: float) -> TracedProgram:
    started, trace = one.trace.started, one.trace
    return TracedProgram(
        process=started.program,
        id=one.id,
        parent=started.parent,
        form=started.form,
        name=started.name,
        client_id=started.client_id,
        tenant=started.tenant,
        start=started.time_s + offset_s,
        end=_time(trace.end_s, offset_s),
        reason=trace.reason,
        num_calls=trace.num_calls,
        calls=[_call(call, offset_s) for call in (*trace.calls, *one.under_way)],
        waits=[
            TraceWait(start=start_s + offset_s, end=_time(end_s, offset_s))
            for start_s, end_s in waits(one)
        ],
        transfers=[_transfer(transfer, offset_s) for transfer in trace.transfers],
    )


def _call(call: CallRecord, offset_s: float) -> TraceCall:
    error = call.error
    return TraceCall(
        command=call.command,
        kind=call.kind,
        model=call.model,
        engine=call.engine,
        thread=call.thread,
        arrival=call.arrival_s + offset_s,
        sent=_time(call.sent_s, offset_s),
        first_token=_time(call.first_token_s, offset_s),
        end=_time(call.end_s, offset_s),
        waiting_s=call.waiting_s,
        service_s=call.service_s,
        num_prefilled_tokens=call.num_prefilled_tokens,
        num_cached_tokens=call.num_cached_tokens,
        num_generated_tokens=call.num_generated_tokens,
        num_preemptions=call.num_preemptions,
        messages=list(call.messages),
        outcome=call.outcome,
        error=None if error is None else TraceError(code=error.code, message=error.message),
    )


def _transfer(transfer: TransferRecord, offset_s: float) -> TraceTransfer:
    return TraceTransfer(
        engine=transfer.engine,
        direction=transfer.direction,
        start=transfer.start_s + offset_s,
        end=transfer.end_s + offset_s,
        num_blocks=transfer.num_blocks,
        num_bytes=transfer.num_bytes,
        lost=transfer.is_lost,
        tier=transfer.tier,
        transport=transfer.transport,
    )


def _message(message: MessageRecord, offset_s: float) -> TraceMessage:
    return TraceMessage(
        engine=message.engine,
        number=message.number,
        sent=message.sent_s + offset_s,
        start=message.start_s + offset_s,
        end=message.end_s + offset_s,
        num_commands=message.num_commands,
        num_tokens=message.num_tokens,
    )


def _time(time_s: float | None, offset_s: float) -> float | None:
    return None if time_s is None else time_s + offset_s
