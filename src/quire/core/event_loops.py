"""Which event loop the edge and users' programs run on.

uvloop's, where the platform has it: one token on its way to a reader takes several turns of these
loops and is woken from one to the next. Control keeps asyncio's, which its child processes need:
uvloop drops their pipes when it is closed behind them.
"""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop that nobody runs yet."""
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
