"""Commands that move K and V between engines: leases, and sends to them.

A *lease* is a part of one engine's memory that waits for the K and V of known tokens. Programs of
the node itself use these commands (``programs.builtin``); control refuses them from all others,
because a target names an address, and all programs share the memory.
"""

from __future__ import annotations

import msgspec

from quire.core.command_base import CommandBase
from quire.core.exchange import SendTarget
from quire.core.ids import EngineId, PageId


class LeaseName(msgspec.Struct, frozen=True, gc=False):
    """One lease of this node. ``epoch``: the life of ``engine`` in which it was opened; ``key``:
    the secret whose holder may use it."""

    engine: EngineId
    epoch: int
    number: int
    key: bytes


class OpenLease(CommandBase, frozen=True, kw_only=True):
    """Hold the indexed full pages that begin ``tokens``, and take memory for the rest, into which
    other engines may write.

    The reply is a ``Leased``, given when the memory is held and nothing is before the message that
    opens the lease at the engine: a sender that comes before the engine has begun with it waits at
    the data plane. The lease belongs to the tenant: it outlives its program, and ends when it is
    taken or closed, or after ``ttl_s`` seconds. ``key``: 16 bytes that cannot be guessed; every
    later use names them. ``adapter``: the adapter that the K and V were computed with.

    ``opaque``: behind ``tokens``, which then fill whole pages, the lease waits for pages of K and V
    whose tokens are not known: each with so many slots. They are never shared, nor computed again.
    """

    tokens: list[int]
    key: bytes
    ttl_s: float
    adapter: str | None = None
    opaque: list[int] = msgspec.field(default_factory=list)


class SendPages(CommandBase, frozen=True, kw_only=True):
    """Send ``num_tokens`` written slots of ``pages``, from slot ``begin`` on (counted over all
    pages), to ``target``. Done when the receiver has them; the reply is a ``Sent``.

    ``content``: that of the receiving engine (``EngineInfo.content``).
    """

    pages: list[PageId]
    begin: int
    num_tokens: int
    target: SendTarget
    content: str


class TakeLease(CommandBase, frozen=True, kw_only=True):
    """Map the first ``num_tokens`` tokens of a lease into this program and end the lease, once all
    its tokens have arrived. The reply is an ``Imported``. ``pages``: at least as many ids as those
    tokens have pages."""

    lease: LeaseName
    pages: list[PageId]
    num_tokens: int


class RenewLease(CommandBase, frozen=True, kw_only=True):
    """Let the lease end ``ttl_s`` seconds from now."""

    lease: LeaseName
    ttl_s: float


class CloseLease(CommandBase, frozen=True, kw_only=True):
    """End the lease; what was received into it is dropped."""

    lease: LeaseName


class PinPrefix(CommandBase, frozen=True, kw_only=True):
    """Evict the cached full pages that begin ``tokens`` after all that have a lower ``price``, for
    ``ttl_s`` seconds. They are not held: a claim for memory may still evict them. Of two prices the
    higher one holds; 0 removes the others. The reply is a ``Pinned``."""

    tokens: list[int]
    price: float
    ttl_s: float
    adapter: str | None = None


LeaseCommand = OpenLease | SendPages | TakeLease | RenewLease | CloseLease | PinPrefix


class Leased(msgspec.Struct, frozen=True, tag=True):
    """The reply to ``OpenLease``. The first ``num_matched`` tokens are here already; the lease
    waits for the others, and is complete at once if there are none. ``address``: the data plane of
    the engine; ``content``: the engine's (see ``EngineInfo``)."""

    lease: LeaseName
    num_matched: int
    num_tokens: int
    address: str
    content: str


class Sent(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The reply to ``SendPages``. ``elapsed_s``: the time of the transfer, as the engine measured
    it; ``transport``: what has carried it (see ``kv_transport.carried_by``)."""

    num_tokens: int
    num_bytes: int
    elapsed_s: float
    transport: str = ""


class Pinned(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The reply to ``PinPrefix``: the first ``num_tokens`` tokens are cached and have the price, or
    a higher one; with price 0, have none."""

    num_tokens: int
