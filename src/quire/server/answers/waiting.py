"""Waits, for a request, until the program that it has launched has ended."""

from __future__ import annotations

import asyncio

from fastapi import Request

from quire.node import ProgramHandle
from quire.server.answers.disconnects import while_connected
from quire.server.errors.errors import HttpError
from quire.server.errors.refusals import mark_launched


async def wait_ended(request: Request, handle: ProgramHandle) -> None:
    """Return when the program has ended; end it if its client disconnects before.

    Raises:
        HttpError: 499; the client has disconnected.
    """
    mark_launched(request.scope, handle.id)
    ended = asyncio.create_task(handle.wait_ended())
    why = "its client, which was to wait for its end, has left"
    outcome = await while_connected(
        ended, request.receive, on_cancel=lambda _: handle.terminate(why)
    )
    if outcome != "ended" and not handle.ended:
        raise HttpError(499, "the client has disconnected")
