"""``/v1/programs/changes``: what has changed about programs since the caller last asked, as one
answer or as server-sent events.

A caller receives the programs of its own tenant only, and the node's engines.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from quire.core.errors import InvalidArgument
from quire.server.context import caller_of, context_of
from quire.server.own_route import OwnRoute
from quire.server.programs.live_changes import ChangesStream
from quire.server.programs.process_rows import changes_body
from quire.server.schemas.base import event_responses
from quire.server.schemas.changes import Changes

router = APIRouter(route_class=OwnRoute, tags=["programs"])

Since = Annotated[
    str, Query(max_length=64, description="`next` of the answer before; absent: from the beginning")
]


_EVENTS = event_responses()


@router.get("/v1/programs/changes", response_model=Changes, responses=_EVENTS)
async def get_changes(request: Request, since: Since = "") -> Response:
    """The programs and sessions that have changed since `since`, those that have ended, and the
    engines as they are. Programs that have not changed cost nothing. A request that accepts
    `text/event-stream` gets such answers as server-sent events, twice a second while anything
    changes; `Last-Event-ID` goes before `since`."""
    context, tenant = context_of(request), caller_of(request)
    started = context.started_unix_s
    if _wants_events(request):
        number = _number(request.headers.get("last-event-id") or since, started)
        return ChangesStream(context.live, number, tenant, context.config.write_timeout_s)
    body = changes_body(context.node.changes(_number(since, started), tenant), started)
    return Response(body.to_json(), media_type="application/json")


def _wants_events(request: Request) -> bool:
    kinds = request.headers.get("accept", "").lower().split(",")
    return any(kind.partition(";")[0].strip() == "text/event-stream" for kind in kinds)


def _number(since: str, started: int) -> int:
    """Return the change number in ``since``; 0 if it comes from before the node's last start.

    Raises:
        InvalidArgument: it is not the ``next`` of an answer.
    """
    if not since:
        return 0
    start, _, number = since.partition("-")
    if not all(part.isascii() and part.isdigit() and len(part) < 16 for part in (start, number)):
        raise InvalidArgument(
            f"since (or Last-Event-ID) is {since[:64]!r}: send the 'next' of an earlier answer, or "
            "leave it out",
            param="since",
        )
    return int(number) if int(start) == started else 0
