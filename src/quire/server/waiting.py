"""Waits, for a request, until the program that it has launched has ended."""

from __future__ import annotations

import asyncio

from fastapi import Request

from quire.node import ProgramHandle
from quire.server.errors import HttpError
from quire.server.write_limit import disconnected


async def wait_ended(request: Request, handle: ProgramHandle) -> None:
    """Return when the program has ended; end it if its client disconnects before.

    Raises:
        HttpError: 499; the client has disconnected.
    """
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
