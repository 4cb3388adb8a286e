"""Chooses the event loop on which the edge and users' programs run.

It is uvloop where the platform has it: each token passes through several turns of these loops on
its way to a reader, and uvloop's turns are cheaper. Control keeps asyncio's loop, which its child
processes need: uvloop drops their pipes when it is closed.
"""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop that is not running."""
    try:
        import uvloop
    except ImportError:  # uvloop does not exist for Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
