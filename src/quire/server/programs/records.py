"""The API's bodies about programs: their records, and the frames of their messages.

Frames are the same over a WebSocket and as server-sent events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import msgspec

from quire.core.errors import ErrorRecord
from quire.node import MailboxMessage, ProcessRecord, ProgramHandle, ProgramRecord, SessionHandle
from quire.node.programs.figures import ResourceUsage, usage_of
from quire.programs.parameters import Parameter
from quire.server.schemas.programs import Parameter as ParameterBody
from quire.server.schemas.programs import ProcessFigures, Program, ProgramError, ProgramUsage


def message_frame(message: MailboxMessage) -> dict[str, Any]:
    return {"type": "message", "sequence": message.sequence, "text": message.text}


def record_frame(kind: str, handle: ProgramHandle) -> dict[str, Any]:
    """Return the frame ``launched`` or ``ended``, with the program's record."""
    record = launched(handle.record(), None).to_json()
    return {"type": kind, "program": json.loads(record)}


def launched(record: ProgramRecord, process: ProcessRecord | None) -> Program:
    return Program(
        id=record.id,
        object="program",
        form=record.form,
        name=record.name,
        state=str(record.state),
        client_id=record.client_id,
        process=_figures(process),
        usage=_usage(record.used, process),
        args=list(record.args),
        named_args=dict(record.named),
        parent=record.parent,
        parent_thread=record.parent_thread,
        priority=-record.priority,
        created=record.started_s,
        ended=record.ended_s,
        duration_s=record.duration_s,
        num_messages=record.num_messages,
        num_dropped_messages=record.num_dropped_messages,
        seed=record.seed,
        result=record.result,
        error=_error(record.error),
    )


def session(record: ProcessRecord, handle: SessionHandle | None, parent: str | None) -> Program:
    """Return the record of a session. ``handle``: None if it is ending; ``parent``: its parent's
    public id."""
    row = record.row
    return Program(
        id=record.id or f"process-{row.program}",
        object="program",
        form=row.form,
        name=row.name,
        state=row.state,
        client_id=row.client_id,
        process=_figures(record),
        usage=_usage(None, record),
        parent=parent,
        priority=None if handle is None else -handle.start.priority,
        created=None if handle is None else handle.created_s,
    )


def _figures(record: ProcessRecord | None) -> ProcessFigures | None:
    if record is None:
        return None
    row = record.row
    return ProcessFigures(
        num_queues=row.num_queues,
        num_threads=row.num_threads,
        num_pages=row.num_pages,
        num_pending_commands=row.num_pending_commands,
        num_prefilled_tokens=row.num_prefilled_tokens,
        num_cached_tokens=row.num_cached_tokens,
        num_generated_tokens=row.num_generated_tokens,
        num_encoded_tokens=row.num_encoded_tokens,
        num_preemptions=row.num_preemptions,
        service_s=row.service_s,
        path_s=row.path_s,
        cost_s=row.cost_s,
        waiting_s=row.waiting_s,
    )


def _usage(used: ResourceUsage | None, process: ProcessRecord | None) -> ProgramUsage | None:
    """Return what the program has used: ``used`` by earlier incarnations, plus what the process
    table has counted for the current one."""
    if process is not None:
        running = usage_of(process.row)
        used = running if used is None else used + running
    return None if used is None else ProgramUsage(**asdict(used))


def usage_body(record: ProgramRecord) -> ProgramUsage | None:
    """Return what an ended program has used."""
    return _usage(record.used, None)


def parameters_body(parameters: Iterable[Parameter]) -> list[ParameterBody]:
    """Return the parameters of a program in the API's form."""
    return [ParameterBody(**msgspec.to_builtins(one)) for one in parameters]


def _error(record: ErrorRecord | None) -> ProgramError | None:
    return None if record is None else ProgramError(code=record.code, message=record.message)
