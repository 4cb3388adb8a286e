"""Runs a program of the node for one microserving request: session, log line, disconnect, time.

Must not know what the program does.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request

from quire.core.errors import QuireError, UnknownHandle
from quire.core.events import LAST_CALL
from quire.core.interfaces import ServedModel
from quire.node import SessionHandle
from quire.node.sessions.calls import BuiltIn, SessionCall
from quire.server.answers.disconnects import while_connected
from quire.server.context import caller_of, context_of, request_id_of
from quire.server.errors.errors import HttpError
from quire.server.errors.refusals import mark_begun
from quire.server.requests.identity import CallIdentity, identify
from quire.server.requests.observation import RequestLabels, RequestObserver
from quire.server.schemas.generation import IdentityFields

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """A request for which a program runs. ``limit_s``: the longest time, None for no limit.
    ``watches``: the call ends when its client disconnects."""

    request: Request
    fields: IdentityFields
    model: ServedModel
    num_prompt_tokens: int
    limit_s: float | None = None
    watches: bool = True


async def result_of(caller: Caller, program: BuiltIn[R, T], asked: R) -> T:
    """Return the result of ``program`` for ``asked``, run in the caller's session.

    Raises:
        HttpError: the client has disconnected; the call is cancelled.
        UnknownHandle: the program has run for longer than ``limit_s``.
        QuireError: see ``Node.session``; the error of the program.
    """
    request = caller.request
    mark_begun(request.scope)
    identity = identify(request.headers, caller.fields)
    session = context_of(request).node.session(
        caller_of(request),
        identity.client_id,
        parent=identity.parent,
        traceparent=request.headers.get("traceparent"),
    )
    observer = _observer(caller, session, identity)
    call = session.call(
        program,
        asked,
        thread=identity.thread,
        parent_thread=identity.parent_thread,
        name=request.url.path,
        traceparent=request.headers.get("traceparent"),
    )
    try:
        result = await _awaited(caller, call)
    except QuireError as error:
        observer.end("failed", error)
        raise
    except HttpError as error:
        observer.end("aborted", reason=str(error.detail))
        raise
    finally:
        call.cancel("its request has ended")
        if identity.final:
            session.end(LAST_CALL)
    observer.end("finished")
    return result


async def _awaited(caller: Caller, call: SessionCall[T]) -> T:
    work = asyncio.create_task(_consumed(call))
    receive = caller.request.receive if caller.watches else None
    outcome = await while_connected(work, receive, limit_s=caller.limit_s)
    if outcome == "disconnected":
        raise HttpError(499, "the client has disconnected")
    if outcome == "timeout":
        raise UnknownHandle("the lease has expired meanwhile: call prep_recv again")
    return work.result()


async def _consumed(call: SessionCall[T]) -> T:
    results = []
    async with aclosing(call):
        async for item in call:
            results.append(item)  # noqa: PERF401 - an async comprehension would not close it
    (result,) = results
    return result


def _observer(caller: Caller, session: SessionHandle, identity: CallIdentity) -> RequestObserver:
    request = caller.request
    labels = RequestLabels(
        request_id=request_id_of(request),
        route=request.url.path,
        tenant=caller_of(request),
        model=caller.model.id,
        session=session.id,
        identity=identity,
        stream=False,
        num_prompt_tokens=caller.num_prompt_tokens,
    )
    return RequestObserver(labels, context_of(request).metrics.requests)
