"""``KVTransport``: how K and V get from the memory of one engine into that of another.

A transport moves *pieces*: some layers of some tokens of a lease, in canonical form or, between
engines whose memory is alike, as they lie there. It knows addresses, leases, keys, windows and
checksums. It does not know pools: it reads pieces from a ``KVSource`` and writes them to a
``KVSink``, both owned by the engine. It is one-sided: the receiver's engine thread takes no part,
so that its steps never wait for a transfer.

The conformance suite is ``quire.testing.conformance.KVTransportSuite``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from quire.core.errors import QuireError
from quire.core.exchange import SendTarget

Carrier = Literal["nixl", "shared_memory", "tcp", "in_process"]
"""What carries the bytes of a piece: NIXL, memory that two processes of one machine share, a TCP
connection, or the process itself."""


def carried_by(carriers: Iterable[Carrier]) -> str:
    """Return what has carried a transfer whose pieces went by ``carriers``: one name, several
    joined by "+" (a piece that does not fit into the memory that was agreed on goes through the
    socket), or nothing if no piece went."""
    return "+".join(sorted(set(carriers)))


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """``num_layers`` layers from ``first_layer`` of ``num_tokens`` tokens from index ``first`` of
    the lease. ``is_raw``: its bytes are those of a layout, not the canonical form."""

    first: int
    num_tokens: int
    first_layer: int
    num_layers: int
    is_raw: bool = False


class KVSource(Protocol):
    """The tokens of one engine that are sent, from the beginning of a send to its end."""

    @property
    def content(self) -> str:
        """``EngineInfo.content`` of the sender."""
        ...

    @property
    def layout(self) -> str:
        """Names how tokens lie in the sender's memory; "" if it sends the canonical form alone."""
        ...

    def pieces(self, *, is_raw: bool) -> Iterator[Piece]:
        """The pieces in the order in which they are sent. ``is_raw``: the receiver has this
        layout."""
        ...

    def num_bytes(self, piece: Piece) -> int: ...

    def is_ready(self, piece: Piece) -> bool:
        """Whether ``wait`` would return at once."""
        ...

    def wait(self, piece: Piece) -> None:
        """Return when the piece may be read: its bytes may still be computed. Blocks its thread.

        Raises:
            QuireError: they never will be.
        """
        ...

    def read(self, piece: Piece, payload: memoryview) -> None:
        """Fill ``payload``, which has the size of the piece, with its bytes."""
        ...


class KVSink(Protocol):
    """The destination of the tokens of one lease. May be closed by its owner at any time and from
    any thread; from then on it takes nothing."""

    @property
    def content(self) -> str:
        """``EngineInfo.content`` of the receiver."""
        ...

    @property
    def layout(self) -> str:
        """The layout of raw pieces that it takes; "": it takes none."""
        ...

    def num_bytes(self, piece: Piece) -> int:
        """How many bytes the piece has.

        Raises:
            InvalidArgument: it is not inside of the lease, is too large, or is raw and must not
                be.
        """
        ...

    def write(self, piece: Piece, payload: memoryview, carrier: Carrier) -> None:
        """Take the bytes of a piece, which the transport has verified. A piece that came before is
        taken again. ``carrier``: what they have come by.

        Raises:
            QuireError: the lease takes nothing more.
        """
        ...


@dataclass(frozen=True, slots=True)
class SendResult:
    """The end of a send. Without ``error`` the receiver has written and verified all pieces.
    ``num_bytes``: of pieces that it has acknowledged; ``transport``: what has carried them (see
    ``carried_by``)."""

    num_bytes: int
    error: QuireError | None = None
    transport: str = field(default="", compare=False)


class KVTransport(Protocol):
    """The connections of one engine to others. Every method may be called from any thread and
    returns at once. Everything that a peer does ends within a bound of time and memory, and
    concerns that peer's transfer alone."""

    @property
    def address(self) -> str:
        """``EngineInfo.data_address``."""
        ...

    def accept(self, lease: int, key: bytes, sink: KVSink) -> None:
        """Write what senders that know ``key`` send to ``lease`` to ``sink``, until ``refuse``.
        What they send otherwise is refused before anything is written. Leases are accepted in the
        order of their numbers: who sends to a later one than all that were accepted waits for it,
        for some seconds at most."""
        ...

    def refuse(self, lease: int) -> None:
        """Forget the lease. A piece may still be on its way to the sink: its owner closes it first.
        Idempotent."""
        ...

    def send(
        self, target: SendTarget, source: KVSource, on_end: Callable[[SendResult], None]
    ) -> None:
        """Begin to send. ``on_end`` is called once, on any thread; nothing is read from ``source``
        after it.

        The result has the receiver's own error; or ``TransferFailed`` if the receiver cannot be
        reached, is silent or is cut off.
        """
        ...

    def close(self) -> None:
        """End all sends with an error and accept nothing more. Returns when no source of this
        engine is read; its sinks are closed by their owner, before. Idempotent."""
        ...
