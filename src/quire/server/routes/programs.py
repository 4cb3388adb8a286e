"""``/v1/programs``: launch programs, look at them, send to them, end them.

A caller sees the programs and sessions of its own tenant alone.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from quire.core.errors import ErrorRecord
from quire.node import ProcessRecord, ProgramHandle, ProgramRecord
from quire.programs.library import LIBRARY, summary_of, theme_of
from quire.server.context import caller_of, context_of
from quire.server.delivery import disconnected
from quire.server.errors import HttpError
from quire.server.schemas.programs import (
    LaunchRequest,
    Library,
    LibraryProgram,
    LogLine,
    LogLines,
    ProcessFigures,
    Program,
    ProgramError,
    ProgramList,
    SignalRequest,
)
from quire.server.strict_json import StrictRoute
from quire.server.upload import program_of

router = APIRouter(route_class=StrictRoute, tags=["programs"])

PublicId = Annotated[str, Path(max_length=256, description="The `id` of a program")]


@router.post("/v1/programs", response_model=Program, status_code=201)
async def launch(request: Request, body: LaunchRequest) -> Response:
    """Start a program of the library, an uploaded one, or one that the request brings along."""
    context, tenant = context_of(request), caller_of(request)
    program = await program_of(body, tenant, context.config, context.node)
    handle = context.node.launch(
        program,
        body.args,
        tenant=tenant,
        client_id=body.client_id,
        priority=-(body.priority or 0),
        parent=body.parent,
        seed=body.seed,
    )
    if body.wait:
        await _ended(request, handle)
    return _json(launched(handle.record(), None), 201)


@router.get("/v1/programs", response_model=ProgramList)
async def list_programs(request: Request) -> Response:
    """Launched programs, recently ended ones included, then open sessions."""
    context, tenant = context_of(request), caller_of(request)
    processes = {record.id: record for record in context.node.processes(tenant)}
    records = context.node.programs(tenant)
    found = [launched(record, processes.pop(record.id, None)) for record in records]
    found += [_session(record) for record in processes.values() if record.row.form == "session"]
    return _json(ProgramList(object="list", data=found))


@router.get("/v1/programs/library", response_model=Library)
async def list_library() -> Response:
    """The programs that can be launched by name, in the order of the library's themes."""
    entries = [
        LibraryProgram(
            name=name,
            object="library_program",
            theme=theme_of(name),
            summary=summary_of(program),
            description=program.description,
        )
        for name, program in LIBRARY.items()
    ]
    return _json(Library(object="list", data=entries))


@router.get("/v1/programs/{program}", response_model=Program)
async def get_program(request: Request, program: PublicId) -> Response:
    """One launched program."""
    context, tenant = context_of(request), caller_of(request)
    record = context.node.program(program, tenant).record()
    processes = {entry.id: entry for entry in context.node.processes(tenant)}
    return _json(launched(record, processes.get(record.id)))


@router.get("/v1/programs/{program}/logs", response_model=LogLines)
async def get_logs(request: Request, program: PublicId) -> Response:
    """What a launched program has logged and the node noted about it, oldest first."""
    handle = context_of(request).node.program(program, caller_of(request))
    lines = [
        LogLine(time=line.time_s, level=line.level, text=line.text, fields=dict(line.fields))
        for line in handle.logs()
    ]
    return _json(LogLines(object="list", data=lines))


@router.post("/v1/programs/{program}/signal", response_model=Program, status_code=202)
async def signal(request: Request, program: PublicId, body: SignalRequest) -> Response:
    """Send a message, end the input, or cancel."""
    handle = context_of(request).node.program(program, caller_of(request))
    handle.signal(body.signal, body.message)
    return _json(launched(handle.record(), None), 202)


@router.delete("/v1/programs/{program}", response_model=Program, status_code=202)
async def terminate(request: Request, program: PublicId) -> Response:
    """End a program and free what it holds. Idempotent."""
    handle = context_of(request).node.program(program, caller_of(request))
    handle.terminate()
    return _json(launched(handle.record(), None), 202)


async def _ended(request: Request, handle: ProgramHandle) -> None:
    """Return when the program has ended; end it if its client leaves before that."""
    ended = asyncio.create_task(handle.wait_ended())
    gone = asyncio.create_task(disconnected(request.receive))
    try:
        await asyncio.wait((ended, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not handle.ended:
            handle.terminate("its client, which was to wait for its end, has left")
        ended.cancel()
        gone.cancel()
        await asyncio.gather(ended, gone, return_exceptions=True)
    if not handle.ended:
        raise HttpError(499, "the client has disconnected")


def _json(body: Program | ProgramList | Library | LogLines, status: int = 200) -> Response:
    return Response(body.to_json(), status, media_type="application/json")


def launched(record: ProgramRecord, process: ProcessRecord | None) -> Program:
    return Program(
        id=record.id,
        object="program",
        form="inferlet",
        name=record.name,
        state=str(record.state),
        client_id=record.client_id,
        process=_figures(process),
        args=list(record.args),
        parent=record.parent,
        priority=-record.priority,
        created=record.started_s,
        ended=record.ended_s,
        num_messages=record.num_messages,
        num_dropped_messages=record.num_dropped_messages,
        seed=record.seed,
        result=record.result,
        error=_error(record.error),
    )


def _session(record: ProcessRecord) -> Program:
    row = record.row
    return Program(
        id=record.id or f"process-{row.program}",
        object="program",
        form=row.form,
        name=row.name,
        state=row.state,
        client_id=row.client_id,
        process=_figures(record),
    )


def _figures(record: ProcessRecord | None) -> ProcessFigures | None:
    if record is None:
        return None
    row = record.row
    return ProcessFigures(
        num_queues=row.num_queues,
        num_pages=row.num_pages,
        num_pending_commands=row.num_pending_commands,
        num_prefilled_tokens=row.num_prefilled_tokens,
        num_cached_tokens=row.num_cached_tokens,
        num_generated_tokens=row.num_generated_tokens,
        num_preemptions=row.num_preemptions,
        service_s=row.service_s,
        waiting_s=row.waiting_s,
    )


def _error(record: ErrorRecord | None) -> ProgramError | None:
    return None if record is None else ProgramError(code=record.code, message=record.message)
