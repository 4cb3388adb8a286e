"""``/v1/sessions``: create a session before its first request, look at it, end it.

Sessions are those that identity headers open and name. A caller sees only those of its own tenant.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from quire.control import ProcessRow
from quire.core.events import ENDED_BY_CLIENT
from quire.node import SessionHandle
from quire.server.context import ServerContext, caller_of, context_of
from quire.server.list_page import ListPage
from quire.server.own_route import OwnRoute
from quire.server.requests.hints import deadline_in_range, priority_in_range, tell_clipped
from quire.server.schemas.base import WholeModel
from quire.server.schemas.sessions import (
    DeletedSession,
    Session,
    SessionFigures,
    SessionList,
    SessionRequest,
)

router = APIRouter(route_class=OwnRoute, tags=["sessions"])

SessionId = Annotated[
    str, Path(max_length=256, description="The `id` of a session, or its `program`")
]


@router.post(
    "/v1/sessions",
    response_model=Session,
    status_code=201,
    responses={200: {"model": Session, "description": "It is open already, with these properties"}},
)
async def create_session(request: Request, body: SessionRequest) -> Response:
    """Open a session. Its requests name it by `id`, for example in `X-Quire-Program-ID`."""
    context = context_of(request)
    session, is_new = context.node.create_session(
        caller_of(request),
        body.id or f"session-{secrets.token_hex(12)}",
        parent=body.parent,
        kind=body.kind or "",
        priority=-priority_in_range(body.priority),
        deadline_s=deadline_in_range(body.deadline_s),
        idle_ttl_s=body.idle_ttl_s,
        metadata=body.metadata or {},
        traceparent=request.headers.get("traceparent"),
    )
    (described,) = _described(context, [session])
    return tell_clipped(_json(described, 201 if is_new else 200), body)


@router.get("/v1/sessions", response_model=SessionList)
async def list_sessions(
    request: Request,
    after: Annotated[str | None, Query(max_length=256)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Response:
    """The caller's open sessions, newest first."""
    context = context_of(request)
    page = ListPage(context.node.sessions(caller_of(request)), _id_of, after, limit)
    return _json(
        SessionList(
            data=_described(context, page.items),
            first_id=page.first_id,
            last_id=page.last_id,
            has_more=page.has_more,
        )
    )


@router.get("/v1/sessions/{session}", response_model=Session)
async def get_session(request: Request, session: SessionId) -> Response:
    """One session and its figures. Reading a session does not keep it open."""
    context = context_of(request)
    found = context.node.find_session(caller_of(request), session)
    (described,) = _described(context, [found])
    return _json(described)


@router.delete("/v1/sessions/{session}", response_model=DeletedSession)
async def delete_session(request: Request, session: SessionId) -> Response:
    """End a session: its running calls are cancelled and its memory is freed."""
    found = context_of(request).node.find_session(caller_of(request), session)
    found.cancel(ENDED_BY_CLIENT)
    return _json(DeletedSession(id=_id_of(found)))


def _id_of(session: SessionHandle) -> str:
    return session.client_id or session.id


def _described(context: ServerContext, sessions: Sequence[SessionHandle]) -> list[Session]:
    rows = context.node.session_rows(sessions)
    return [_session(*one) for one in zip(sessions, rows, strict=True)]


def _session(session: SessionHandle, row: ProcessRow | None) -> Session:
    start = session.start
    return Session(
        id=_id_of(session),
        program=session.id,
        state="idle" if row is None else row.state,
        created_at=session.created_s,
        parent=start.parent_name if start.parent is not None else None,
        kind=start.kind or None,
        priority=-start.priority,
        deadline_s=start.deadline_s,
        idle_ttl_s=session.idle_ttl_s,
        metadata=dict(start.metadata),
        num_calls=session.num_calls,
        num_running_calls=len(session.calls),
        figures=None if row is None else _figures(row),
    )


def _figures(row: ProcessRow) -> SessionFigures:
    values = asdict(row)
    return SessionFigures(**{name: values[name] for name in SessionFigures.model_fields})


def _json(body: WholeModel, status: int = 200) -> Response:
    return Response(body.to_json(), status, media_type="application/json")
