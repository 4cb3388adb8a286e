"""Issues lease commands for the node's own programs; each returns a reply to await.

The programming interface does not offer these: a target has an address, and a lease has a secret.
"""

from __future__ import annotations

from quire.core.exchange import SendTarget
from quire.core.lease_commands import (
    CloseLease,
    Leased,
    LeaseName,
    OpenLease,
    Pinned,
    PinPrefix,
    RenewLease,
    SendPages,
    Sent,
    TakeLease,
)
from quire.programs.api import Api, KvPage, Queue
from quire.programs.api.issuer import nothing
from quire.programs.api.reply import Reply


def open_lease(
    api: Api, queue: Queue, tokens: tuple[int, ...], num_known: int, key: bytes, ttl_s: float
) -> Reply[Leased]:
    """Open a lease of memory for the K and V of ``tokens``, as the queue's model computes them. The
    pages of the first ``num_known`` come from the prefix cache and go into it."""
    size, num_tokens = queue.page_size, len(tokens)
    opaque: list[int] = []
    if num_known < num_tokens:
        tokens = tokens[: num_known // size * size]
        opaque = [min(size, num_tokens - at) for at in range(len(tokens), num_tokens, size)]
    command = OpenLease(
        id=api.issuer.command_id(),
        tokens=list(tokens),
        opaque=opaque,
        key=key,
        ttl_s=ttl_s,
        adapter=queue.state.model.adapter,
    )
    return api.issuer.submit(queue, command, _same_lease)


def send_pages(
    api: Api,
    queue: Queue,
    pages: list[KvPage],
    begin: int,
    num_tokens: int,
    target: SendTarget,
    content: str,
) -> Reply[Sent]:
    """Send slots of ``pages``; ``begin`` counts over all of them."""
    command = SendPages(
        id=api.issuer.command_id(),
        after=queue.dependencies,
        pages=[page.page_id for page in pages],
        begin=begin,
        num_tokens=num_tokens,
        target=target,
        content=content,
    )
    return api.issuer.submit(queue, command, _same_sent)


def take_lease(
    api: Api, queue: Queue, lease: LeaseName, num_tokens: int
) -> tuple[list[KvPage], Reply[None]]:
    """End ``lease`` and return pages with its first ``num_tokens`` tokens. The pages may be used
    before the reply arrives."""
    pages = api.issuer.new_pages(queue, -(-num_tokens // queue.page_size))
    command = TakeLease(
        id=api.issuer.command_id(),
        lease=lease,
        pages=[page.page_id for page in pages],
        num_tokens=num_tokens,
    )
    for index, page in enumerate(pages):
        start = index * queue.page_size
        page.append(range(start, min(start + queue.page_size, num_tokens)))
    return pages, api.issuer.submit(queue, command, nothing)


def renew_lease(api: Api, queue: Queue, lease: LeaseName, ttl_s: float) -> Reply[None]:
    command = RenewLease(id=api.issuer.command_id(), lease=lease, ttl_s=ttl_s)
    return api.issuer.submit(queue, command, nothing)


def close_lease(api: Api, queue: Queue, lease: LeaseName) -> Reply[None]:
    return api.issuer.submit(queue, CloseLease(id=api.issuer.command_id(), lease=lease), nothing)


def pin_prefix(
    api: Api, queue: Queue, tokens: tuple[int, ...], price: float, ttl_s: float
) -> Reply[Pinned]:
    """See ``PinPrefix``."""
    command = PinPrefix(
        id=api.issuer.command_id(),
        tokens=list(tokens),
        price=price,
        ttl_s=ttl_s,
        adapter=queue.state.model.adapter,
    )
    return api.issuer.submit(queue, command, _same_pinned)


def _same_lease(leased: Leased) -> Leased:
    return leased


def _same_sent(sent: Sent) -> Sent:
    return sent


def _same_pinned(pinned: Pinned) -> Pinned:
    return pinned
