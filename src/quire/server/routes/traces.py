"""``/v1/programs/{program}/trace``: what a program or session did and when.

A caller sees only the programs and sessions of its own tenant.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from quire.server.context import caller_of, context_of
from quire.server.own_route import OwnRoute
from quire.server.programs.traces import trace_body
from quire.server.schemas.traces import ProgramTrace

router = APIRouter(route_class=OwnRoute, tags=["programs"])

Name = Annotated[
    str, Path(max_length=256, description="The `id` of a program or session, or a session's own")
]
Family = Annotated[bool, Query(description="With the programs below it")]


@router.get("/v1/programs/{program}/trace", response_model=ProgramTrace)
async def get_trace(request: Request, program: Name, family: Family = False) -> Response:
    """The latest calls of a program or session, what it waited for between them, and the engines'
    messages that carried them. After its end it is available as long as its record is kept."""
    node = context_of(request).node
    trace = await node.traces.read(program, caller_of(request), family=family)
    # a family may have 65,536 calls, and the loop is every client's
    body = await asyncio.to_thread(lambda: trace_body(trace).to_json())
    return Response(body, media_type="application/json")
