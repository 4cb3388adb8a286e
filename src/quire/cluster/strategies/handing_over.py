"""The three calls in their order: one engine computes the beginning of a prompt, another the rest
and the answer (the paper's figures 3 to 6)."""

from __future__ import annotations

from quire.cluster.answer import Answer
from quire.cluster.interfaces import Engine
from quire.cluster.request import Request
from quire.core.errors import CapacityError


async def handed_over(request: Request, sender: Engine, receiver: Engine, end: int) -> Answer:
    """``sender`` brings what ``receiver`` has not of ``prompt[:end]``, computed or from its cache;
    ``receiver`` goes on from there. A receiver without room for it now computes all by itself."""
    try:
        received = await receiver.prep_recv(request, end)
    except CapacityError:
        return await receiver.send(request)
    if received.matched_len < received.end:
        begin = received.matched_len
        await sender.remote_send(request, received, begin=begin, end=received.end)
    return await receiver.start_generate(request, received.end, received=received)
