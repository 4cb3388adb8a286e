"""The three calls in their order: one engine computes the beginning of a prompt, another the rest
and the answer (the paper's figures 3 to 6)."""

from __future__ import annotations

from quire.cluster.engines.interfaces import Engine
from quire.cluster.requests.answer import Answer
from quire.cluster.requests.request import Request
from quire.core.errors import CapacityError


async def handed_over(request: Request, sender: Engine, receiver: Engine, end: int) -> Answer:
    """``sender`` brings what ``receiver`` has not of ``prompt[:end]``, computed or from its cache;
    ``receiver`` goes on from there. A chat is sent whole then, and finds the tokens in the
    receiver's cache. A receiver without room for them now computes all by itself."""
    prompt = request.prompt
    is_chat = prompt is None
    if prompt is None:
        prompt = await sender.prompt_tokens(request)
    try:
        received = await receiver.prep_recv(request, end, prompt=prompt)
    except CapacityError:
        return await receiver.send(request)
    if (begin := received.matched_len) < received.end:
        await sender.remote_send(request, received, begin=begin, end=received.end, prompt=prompt)
    if is_chat:
        return await receiver.send(request)
    return await receiver.start_generate(request, received.end, received=received)
