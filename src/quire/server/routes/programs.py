"""``/v1/programs``: launch programs, list them, send to them, end them.

A caller sees only the programs and sessions of its own tenant.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from quire.programs.inferlet import Inferlet
from quire.programs.library import LIBRARY, summary_of, theme_of
from quire.programs.sandbox.program import GuestProgram
from quire.server.answers.disconnects import while_connected
from quire.server.answers.waiting import wait_ended
from quire.server.context import caller_of, context_of
from quire.server.errors.errors import HttpError
from quire.server.own_route import OwnRoute
from quire.server.programs.events import ProgramEvents, place_of
from quire.server.programs.records import launched, parameters_body, session
from quire.server.programs.upload import program_of
from quire.server.requests.hints import priority_in_range, tell_clipped
from quire.server.schemas.base import event_responses
from quire.server.schemas.programs import (
    LaunchRequest,
    Library,
    LibraryProgram,
    LogLine,
    LogLines,
    Program,
    ProgramList,
    SignalRequest,
)

router = APIRouter(route_class=OwnRoute, tags=["programs"])

PublicId = Annotated[str, Path(max_length=256, description="The `id` of a program")]
After = Annotated[int, Query(ge=0, lt=1 << 53)]

_EVENTS = event_responses()


@router.post("/v1/programs", response_model=Program, status_code=201, responses=_EVENTS)
async def launch(request: Request, body: LaunchRequest) -> Response:
    """Start a program of the library, a workflow, an uploaded program, or one in the request; with
    `stream` its messages are sent as server-sent events that end with `[DONE]`."""
    context, tenant = context_of(request), caller_of(request)
    program = await _program(request, body)
    handle = context.node.launch(
        program,
        body.args,
        tenant=tenant,
        client_id=body.client_id,
        priority=-priority_in_range(body.priority),
        parent=body.parent,
        seed=body.seed,
        named=body.named_args,
        traceparent=request.headers.get("traceparent"),
    )
    if body.stream:
        return tell_clipped(
            ProgramEvents(handle, context.config.write_timeout_s, is_launch=True), body
        )
    if body.wait:
        await wait_ended(request, handle)
    else:
        await handle.kept()
    return tell_clipped(_json(launched(handle.record(), None), 201), body)


async def _program(request: Request, body: LaunchRequest) -> Inferlet | GuestProgram:
    """Return the program to launch. Code takes up to a minute to be checked; if its client leaves
    meanwhile, nothing is launched, because the client alone would know of it."""
    context = context_of(request)
    finding = program_of(body, caller_of(request), context.config, context.node, context.workflows)
    if body.program is not None:
        return await finding
    checking = asyncio.create_task(finding)
    if await while_connected(checking, request.receive) != "ended":
        raise HttpError(499, "the client has disconnected")
    return checking.result()


@router.get("/v1/programs", response_model=ProgramList)
async def list_programs(request: Request) -> Response:
    """Launched programs, including recently ended ones, then open sessions."""
    context, tenant = context_of(request), caller_of(request)
    processes = {record.id: record for record in context.node.processes(tenant)}
    records = context.node.programs(tenant)
    found = [launched(record, processes.pop(record.id, None)) for record in records]
    handles = {one.program: one for one in context.node.sessions(tenant)}
    for record in processes.values():
        if record.row.form == "session":
            handle = handles.get(record.row.program)
            above = None if handle is None else handle.start.parent
            parent = None if above is None else context.node.public_id(above)
            found.append(session(record, handle, parent))
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
            parameters=parameters_body(program.parameters),
            restartable=program.restartable,
        )
        for name, program in LIBRARY.items()
    ]
    return _json(Library(object="list", data=entries))


@router.get("/v1/programs/{program}", response_model=Program)
async def get_program(request: Request, program: PublicId) -> Response:
    """One launched program."""
    context, tenant = context_of(request), caller_of(request)
    record = context.node.program(program, tenant).record()
    return _json(launched(record, context.node.process(record.program)))


@router.get("/v1/programs/{program}/events", responses=_EVENTS, response_class=Response)
async def get_events(request: Request, program: PublicId, after: After = 0) -> Response:
    """A launched program's messages from the first one, or after number `after` (or the header
    `Last-Event-ID`), as server-sent events until it ends. Disconnecting does not end the
    program."""
    context = context_of(request)
    handle = context.node.program(program, caller_of(request))
    place = place_of(request.headers.get("last-event-id"), after)
    return ProgramEvents(handle, context.config.write_timeout_s, after=place)


@router.get("/v1/programs/{program}/logs", response_model=LogLines)
async def get_logs(request: Request, program: PublicId) -> Response:
    """A launched program's log entries, its output and the node's notes, oldest first."""
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
    await handle.kept()
    return _json(launched(handle.record(), None), 202)


@router.delete("/v1/programs/{program}", response_model=Program, status_code=202)
async def terminate(request: Request, program: PublicId) -> Response:
    """End a program and free its resources. Idempotent."""
    handle = context_of(request).node.program(program, caller_of(request))
    handle.terminate()
    return _json(launched(handle.record(), None), 202)


def _json(body: Program | ProgramList | Library | LogLines, status: int = 200) -> Response:
    return Response(body.to_json(), status, media_type="application/json")
