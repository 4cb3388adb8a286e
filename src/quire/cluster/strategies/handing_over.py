"""The three calls in their order: one engine computes the beginning of a prompt, another the rest
and the answer (the paper's figures 3 to 6)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from quire.cluster.engines.interfaces import Engine, RemoteSendResult
from quire.cluster.engines.overlapping import answered_while_sending
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
    and ``receiver`` go on from there; return the answer. ``receiver`` is asked for the answer while
    the tokens are on their way, and computes everything itself if it has no room for them now, or
    if ``end`` lies within an image. ``on_sent`` receives the result of the transfer, whose
    ``call_s`` is that of both calls, at most until the answer began."""
    prompt = request.prompt
    if prompt is None:  # a chat: its tokens are those that its receiver computes
        prompt = await sender.prompt_tokens(request)
    try:
        received = await receiver.prep_recv(request, end, prompt=prompt)
    except CapacityError:
        return await receiver.send(request)
    except InvalidArgument:
        if not request.has_images:
            raise
        return await receiver.send(request)
    answering = receiver.start_generate(request, received.end, received=received)
    if (begin := received.matched_len) >= received.end:
        return await answering

    def sent(result: RemoteSendResult) -> None:
        if on_sent is not None:
            on_sent(replace(result, call_s=received.call_s + result.call_s))

    sending = sender.remote_send(request, received, begin=begin, end=received.end, prompt=prompt)
    return await answered_while_sending(sending, answering, request.work, sent)
