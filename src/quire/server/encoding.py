"""Runs sequences on an encoder for one HTTP request: handles a disconnect, writes the log line.

Must not know what the rows are for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request

from quire.core.batch import F32
from quire.core.errors import QuireError
from quire.core.events import LAST_CALL
from quire.engine.encoders.text import EncodedText
from quire.node.encoders.service import EncoderService
from quire.node.sessions.handle import SessionHandle
from quire.server.answers.disconnects import while_connected
from quire.server.context import caller_of, context_of, request_id_of
from quire.server.errors.errors import HttpError
from quire.server.errors.refusals import mark_begun
from quire.server.requests.identity import CallIdentity, identify
from quire.server.requests.observation import RequestLabels, RequestObserver
from quire.server.schemas.generation import IdentityFields


async def rows_of(
    request: Request, encoder: EncoderService, sequences: Sequence[EncodedText]
) -> F32:
    """Return a row for each of ``sequences``.

    Raises:
        HttpError: the client has disconnected; sequences that have not run yet are dropped.
        QuireError: see ``Node.session`` and ``EncoderService.encode``.
    """
    mark_begun(request.scope)
    identity = identify(request.headers, IdentityFields.model_construct())
    session = context_of(request).node.session(
        caller_of(request),
        identity.client_id,
        parent=identity.parent,
        traceparent=request.headers.get("traceparent"),
    )
    observer = _observer(request, encoder, session, identity, sequences)
    call = session.encode(encoder, sequences, thread=identity.thread)
    work = asyncio.create_task(call.result())
    try:
        if await while_connected(work, request.receive) != "ended":
            observer.end("aborted", reason="the client has disconnected")
            raise HttpError(499, "the client has disconnected")
        rows = work.result()
    except QuireError as error:
        observer.end("failed", error)
        raise
    finally:
        if identity.final:
            session.end(LAST_CALL)
    observer.end("finished")
    return rows


def _observer(
    request: Request,
    encoder: EncoderService,
    session: SessionHandle,
    identity: CallIdentity,
    sequences: Sequence[EncodedText],
) -> RequestObserver:
    labels = RequestLabels(
        request_id=request_id_of(request),
        route=request.url.path,
        tenant=caller_of(request),
        model=encoder.name,
        session=session.id,
        identity=identity,
        stream=False,
        num_prompt_tokens=sum(len(one.tokens) for one in sequences),
    )
    return RequestObserver(labels, context_of(request).metrics.requests)
