"""The three calls in their order: one engine computes the beginning of a prompt, another the rest
and the answer (the paper's figures 3 to 6)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from quire.cluster.engines.interfaces import Engine, RemoteSendResult
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request
from quire.core.errors import CapacityError, InvalidArgument


async def handed_over(
    request: Request,
    sender: Engine,
    receiver: Engine,
    end: int,
    on_sent: Callable[[RemoteSendResult], None] | None = None,
) -> RoutedAnswer:
    """Have ``sender`` send what ``receiver`` lacks of ``prompt[:end]``, computed or from its cache,
    and ``receiver`` go on from there; return the answer. A chat of text is then sent whole, and
    finds the tokens in the receiver's cache; a chat with images takes them from the lease.
    ``receiver`` computes everything itself if it has no room for the tokens now, or if ``end`` lies
    within an image. ``on_sent`` receives the result of the transfer, whose ``call_s`` is that of
    both calls."""
    prompt = request.prompt
    is_chat = prompt is None
    if prompt is None:
        prompt = await sender.prompt_tokens(request)
    try:
        received = await receiver.prep_recv(request, end, prompt=prompt)
    except CapacityError:
        return await receiver.send(request)
    except InvalidArgument:
        if not request.has_images:
            raise
        return await receiver.send(request)
    if (begin := received.matched_len) < received.end:
        sent = await sender.remote_send(
            request, received, begin=begin, end=received.end, prompt=prompt
        )
        if on_sent is not None:
            on_sent(replace(sent, call_s=received.call_s + sent.call_s))
    if is_chat and not request.has_images:
        return await receiver.send(request)
    return await receiver.start_generate(request, received.end, received=received)
