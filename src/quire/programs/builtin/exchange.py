"""The programs that execute ``prep_recv`` and ``remote_send``, and that renew and cancel a lease.

Each yields one result and frees its queues however it ends. A lease outlives the program that opens
it. ``start_generate`` is executed by a completion (``completion``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass

from quire.core.decoding import StopSpec
from quire.core.errors import QueuePoisoned, QuireError
from quire.core.exchange import SendTarget
from quire.core.ids import ModelId
from quire.core.lease_commands import Leased, LeaseName, Pinned, Sent
from quire.programs.api import Api, KvPage, Model, Queue
from quire.programs.api.reply import CommandFuture, Reply
from quire.programs.builtin.leases import (
    close_lease,
    open_lease,
    pin_prefix,
    renew_lease,
    send_pages,
    take_lease,
)
from quire.programs.builtin.requests import PromptImage
from quire.programs.builtin.seeing import see_image

PIECE_TOKENS = 512
"""Tokens of one piece of a prompt. A piece is sent while the next one is computed."""


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """``tokens``: all tokens that the receiver is to have. What follows the first ``num_known`` is
    in no prefix cache: there are images in it, or the caller uses no cache. ``key``: that of the
    lease."""

    model: ModelId
    tokens: tuple[int, ...]
    num_known: int
    key: bytes
    ttl_s: float
    priority: int = 0


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send tokens ``begin`` (included) to ``end`` (excluded) of ``prompt`` to ``target``, whose
    lease waits for those from ``lease_begin`` on. ``content``: the kind of the receiver's K and V
    (``EngineInfo.content``). ``images``: those that end at ``end`` or before. Without ``cache`` the
    prompt neither comes from the prefix cache nor goes into it."""

    model: ModelId
    prompt: tuple[int, ...]
    begin: int
    end: int
    lease_begin: int
    target: SendTarget
    content: str
    priority: int = 0
    images: tuple[PromptImage, ...] = ()
    cache: bool = True


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """Renew a lease for ``ttl_s`` seconds from now; None ends it: at once, or, with
    ``when_arrived``, when all that it waits for has arrived."""

    model: ModelId
    lease: LeaseName
    ttl_s: float | None = None
    when_arrived: bool = False


@dataclass(frozen=True, slots=True)
class PinRequest:
    """See ``PinPrefix``."""

    model: ModelId
    tokens: tuple[int, ...]
    price: float
    ttl_s: float
    priority: int = 0


async def prepare_receive(api: Api, request: PrepareRequest) -> AsyncGenerator[Leased, None]:
    """Open a lease: hold the pages of the tokens that are cached here, and memory for the rest.

    Raises:
        PoolExhausted, NeverFits, QuotaExceeded: there is no room; the figures say why.
    """
    queue = _queue(api, request.model, request.priority)
    try:
        yield await open_lease(
            api, queue, request.tokens, request.num_known, request.key, request.ttl_s
        )
    finally:
        api.close_queue(queue)


async def change_lease(api: Api, request: LeaseRequest) -> AsyncGenerator[None, None]:
    """Renew the lease, or end it. A lease that ends when all has arrived leaves its full pages in
    the prefix cache; one that ends earlier leaves nothing.

    Raises:
        UnknownHandle: there is no such lease, or it has ended.
    """
    queue = _queue(api, request.model, 0)
    try:
        if request.ttl_s is None and request.when_arrived:
            _, taken = take_lease(api, queue, request.lease, 1)
            await taken
        elif request.ttl_s is None:
            await close_lease(api, queue, request.lease)
        else:
            await renew_lease(api, queue, request.lease, request.ttl_s)
        yield None
    finally:
        api.close_queue(queue)


async def pin(api: Api, request: PinRequest) -> AsyncGenerator[Pinned, None]:
    """Let the cached pages of the tokens be evicted later than others."""
    queue = _queue(api, request.model, request.priority)
    try:
        yield await pin_prefix(api, queue, request.tokens, request.price, request.ttl_s)
    finally:
        api.close_queue(queue)


async def remote_send(api: Api, request: SendRequest) -> AsyncGenerator[Sent, None]:
    """Compute the part of the prompt that is not cached here and send the wanted part; end when the
    receiver has all of it.

    Raises:
        QuireError: the error that ended a computation or a send.
    """
    sender = _Sender(api, request)
    try:
        yield await sender.run()
    except QueuePoisoned as exc:
        if isinstance(exc.__cause__, QuireError):
            raise exc.__cause__ from None
        raise
    finally:
        sender.close()


def _queue(api: Api, model: ModelId, priority: int) -> Queue:
    return api.create_queue(Model(api.issuer, api.issuer.model(model)), priority=priority)


class _Sender:
    """Sends first, on a queue of its own, what is cached here already. Each piece of the rest is
    computed and sent on one queue, so that one message may do both and the engine sends each layer
    when it is computed. Two queues take turns: a piece is computed while the one before is still
    being sent, and a slow receiver delays the one after that."""

    def __init__(self, api: Api, request: SendRequest) -> None:
        self._api = api
        self._request = request
        self._compute, self._other, self._send = (
            _queue(api, request.model, request.priority) for _ in range(3)
        )
        self._computed: CommandFuture | None = None
        self._sends: list[Reply[Sent]] = []
        self._pages: list[KvPage] = []

    def close(self) -> None:
        for queue in (self._send, self._other, self._compute):
            self._api.close_queue(queue)

    async def run(self) -> Sent:
        request, size = self._request, self._compute.page_size
        tokens = request.prompt[: request.end]
        position = await self._send_cached() if request.cache else 0
        if request.images:
            self._see_and_send(tokens, position)
        else:
            piece = max(PIECE_TOKENS // size, 1) * size
            while position < request.end:
                stop = min(position + piece, request.end)
                self._compute_and_send(tokens[position:stop], position)
                position = stop
        done = [await send for send in self._sends]
        return Sent(
            num_tokens=sum(one.num_tokens for one in done),
            num_bytes=sum(one.num_bytes for one in done),
            elapsed_s=sum(one.elapsed_s for one in done),
            transport=_joined(done),
        )

    async def _send_cached(self) -> int:
        """Send what the prefix cache has; return the number of its tokens."""
        request = self._request
        # one more than is sent: the prefix index never returns the page of a prompt's last token
        num_known = request.images[0].start if request.images else request.end + 1
        here = await self._api.import_prefix(self._compute, request.prompt[:num_known])
        self._pages = list(here.pages)
        self._send_between(0, here.num_tokens, self._send)
        return here.num_tokens

    def _compute_and_send(self, tokens: tuple[int, ...], position: int) -> None:
        queue = self._compute
        own = self._api.alloc_kvpage(queue, -(-len(tokens) // queue.page_size))
        before = self._computed
        self._computed = self._api.decode(
            queue if before is None else queue.after(before),
            self._pages,
            tokens,
            own,
            position=position,
            stop=StopSpec(0),
            cache=self._request.cache,
        )
        self._pages += own
        self._send_between(position, position + len(tokens), queue)
        self._compute, self._other = self._other, queue

    def _see_and_send(self, tokens: tuple[int, ...], position: int) -> None:
        """Compute text and images from ``position`` on; send each whole page when it is
        computed."""
        size = self._compute.page_size
        num_more = -(-len(tokens) // size) - len(self._pages)
        self._pages += self._api.alloc_kvpage(self._compute, num_more)
        sent = position
        for stop, image in _parts(len(tokens), position, self._request.images):
            if image is None:
                computed: CommandFuture = self._api.decode(
                    self._compute, self._pages, tokens[position:stop], self._pages,
                    position=position, stop=StopSpec(0), cache=self._request.cache,
                )  # fmt: skip
            else:
                computed = see_image(self._api, self._compute, self._pages, image)
            position = stop
            whole = position if position == len(tokens) else position // size * size
            self._send_between(sent, whole, self._send.after(computed))
            sent = max(sent, whole)

    def _send_between(self, start: int, stop: int, queue: Queue) -> None:
        """Send the wanted ones of tokens ``start`` (included) to ``stop`` (excluded)."""
        request, size = self._request, self._compute.page_size
        start, stop = max(start, request.begin), min(stop, request.end)
        if start >= stop:
            return
        first = start // size
        self._sends.append(
            send_pages(
                self._api,
                queue,
                self._pages[first : -(-stop // size)],
                start - first * size,
                stop - start,
                SendTarget(
                    address=request.target.address,
                    lease=request.target.lease,
                    key=request.target.key,
                    first=start - request.lease_begin,
                ),
                request.content,
            )
        )


def _joined(sends: Sequence[Sent]) -> str:
    """Return what has carried all of ``sends``, each name once."""
    return "+".join(sorted({name for one in sends for name in one.transport.split("+") if name}))


def _parts(
    num_tokens: int, position: int, images: Sequence[PromptImage]
) -> Iterator[tuple[int, PromptImage | None]]:
    """The parts of a prompt from ``position`` on: the end of each, and its image or None (text)."""
    for image in images:
        if position < image.start:
            yield image.start, None
        position = image.start + image.num_embeds
        yield position, image
    if position < num_tokens:
        yield num_tokens, None
