"""Does what takes long for a large request in a thread, as the edge's loop is every client's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar, TypeVarTuple

from quire.engine.encoders.text import EncodedText

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MANY_SEQUENCES = 256
MANY_TOKENS = 8192
"""From so many on a request is large. A graph sends up to 64 requests in one turn of the loop."""


async def aside(sequences: Sequence[EncodedText], function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call ``function``; in a thread if a request for these ``sequences`` is large."""
    is_large = len(sequences) >= MANY_SEQUENCES
    if is_large or sum(len(one.tokens) for one in sequences) >= MANY_TOKENS:
        return await asyncio.to_thread(function, *args)
    return function(*args)
