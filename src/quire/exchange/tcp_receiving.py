"""One connection from another engine: pieces come in, are verified, and go to a lease's sink."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from quire.core.errors import ProtocolMismatch, QuireError, TransferFailed
from quire.core.kv_transport import Carrier, KVSink
from quire.core.wire import PROTOCOL_VERSION
from quire.exchange.agreement import is_raw_between, require_size
from quire.exchange.buffers import Buffer
from quire.exchange.leases import Leases
from quire.exchange.limits import ExchangeLimits
from quire.exchange.nixl import NixlMemory, NixlWindow, RemoteName
from quire.exchange.shared_window import open_window
from quire.exchange.tcp_frames import (
    ConnectionEnded,
    Frames,
    Greeting,
    Part,
    ReceiverWelcome,
    SharedPart,
    ToReceiver,
    Written,
    checksum,
)

logger = logging.getLogger(__name__)


class IncomingMemory:
    """Where the pieces of one connection come to lie. ``buffer``: of this engine; ``nixl``: None if
    senders cannot write to its memory."""

    def __init__(self, buffer: Buffer, nixl: NixlMemory | None) -> None:
        self.buffer = buffer
        self._nixl = nixl
        self._lent: NixlWindow | None = None
        self._shared: memoryview | None = None

    def agree(self, greeting: Greeting, limits: ExchangeLimits) -> RemoteName | None:
        """Where the sender is to write pieces, if it can; otherwise memory that both share is
        opened, if there is any."""
        if greeting.has_nixl and self._nixl is not None:
            self._lent = self._nixl.lend()
            if self._lent is not None:
                return self._nixl.name(self._lent)
        if greeting.shared is not None and limits.shares_memory:
            self._shared = open_window(greeting.shared, limits.window_bytes)
        return None

    @property
    def is_shared(self) -> bool:
        return self._shared is not None

    @property
    def carrier(self) -> Carrier:
        """What carries the pieces in the memory that was agreed on."""
        return "shared_memory" if self._lent is None else "nixl"

    @property
    def num_bytes(self) -> int:
        """Of the memory that was agreed on."""
        if self._lent is not None:
            return self._lent.num_bytes
        return 0 if self._shared is None else self._shared.nbytes

    def piece(self, offset: int, num_bytes: int) -> memoryview:
        """What lies in the memory that was agreed on. Another sender may still write where NIXL
        has: the piece is copied before it is verified."""
        if self._lent is not None:
            copied = self.buffer.room(num_bytes)
            copied[:] = self._lent.view[offset : offset + num_bytes]
            return copied
        assert self._shared is not None, "nothing was agreed on"
        return self._shared[offset : offset + num_bytes]

    def close(self) -> None:
        if self._lent is not None and self._nixl is not None:
            self._nixl.give_back(self._lent)
        self._lent = self._shared = None


async def receive(
    frames: Frames[ToReceiver], leases: Leases, limits: ExchangeLimits, memory: IncomingMemory
) -> None:
    """Serve one connection until its end. A peer that breaks the protocol, is silent or is cut off
    ends its own connection alone."""
    try:
        async with asyncio.timeout(limits.greeting_s):
            agreed = await _greet(frames, leases, limits, memory)
        await _take_all(frames, agreed, limits, memory)
    except ConnectionEnded:
        return
    except QuireError as exc:
        logger.info("a transfer of K and V from another engine is refused: %s", exc)
        await _refuse(frames, exc, limits)
    except TimeoutError:
        logger.info("an engine that sent K and V is silent")
    except OSError as exc:
        logger.info("a transfer of K and V from another engine was cut off: %s", exc)


@dataclass(frozen=True, slots=True)
class _Agreed:
    """``is_raw``: in which form pieces come."""

    sink: KVSink
    is_raw: bool


async def _greet(
    frames: Frames[ToReceiver], leases: Leases, limits: ExchangeLimits, memory: IncomingMemory
) -> _Agreed:
    greeting, _ = await frames.hear()
    if not isinstance(greeting, Greeting):
        raise ProtocolMismatch(f"{type(greeting).__name__} came before a greeting")
    if greeting.version != PROTOCOL_VERSION:
        raise ProtocolMismatch(
            f"the sender speaks protocol version {greeting.version}, this engine "
            f"{PROTOCOL_VERSION}: run the same release of quire on both sides"
        )
    await _opened(leases, greeting.lease, limits.opening_s)
    sink = leases.sink_of(greeting.lease, greeting.key, greeting.content)
    is_raw = is_raw_between(greeting.layout, sink)
    remote = memory.agree(greeting, limits)
    await frames.say(
        ReceiverWelcome(
            piece_bytes=limits.piece_bytes,
            is_raw=is_raw,
            is_shared=memory.is_shared,
            remote=remote,
        )
    )
    return _Agreed(sink, is_raw)


async def _opened(leases: Leases, lease: int, limit_s: float) -> None:
    """Return when ``lease`` is not to come any more, at most ``limit_s`` later."""
    if not leases.is_to_come(lease):
        return
    loop, has_come = asyncio.get_running_loop(), asyncio.Event()

    def ring() -> None:
        if not leases.is_to_come(lease):
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(has_come.set)

    unwatch = leases.watch(ring)
    try:
        ring()  # it may have come before
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await has_come.wait()
    finally:
        unwatch()


async def _take_all(
    frames: Frames[ToReceiver], agreed: _Agreed, limits: ExchangeLimits, memory: IncomingMemory
) -> None:
    num_bytes = 0
    carrier: Carrier
    while True:
        await asyncio.sleep(0)  # a socket that is ready does not yield to the other transfers
        async with asyncio.timeout(limits.silence_s):
            part, size = await frames.hear()
            if not isinstance(part, Part | SharedPart):
                raise ProtocolMismatch(f"{type(part).__name__} came where a piece was due")
            if isinstance(part, SharedPart):
                payload, carrier = _shared_payload(agreed, part, size, limits, memory)
            else:
                carrier = "tcp"
                _check_size(agreed, part, size, limits)
                payload = memory.buffer.room(size)
                await frames.fill(payload)
        if checksum(payload) != part.checksum:
            raise TransferFailed(
                f"{payload.nbytes} bytes came damaged (tokens {part.piece.first} to "
                f"{part.piece.first + part.piece.num_tokens - 1}): send them again"
            )
        agreed.sink.write(part.piece, payload, carrier)
        num_bytes += payload.nbytes
        async with asyncio.timeout(limits.silence_s):
            await frames.say(Written(num_bytes=num_bytes))


def _shared_payload(
    agreed: _Agreed,
    part: SharedPart,
    body_size: int,
    limits: ExchangeLimits,
    memory: IncomingMemory,
) -> tuple[memoryview, Carrier]:
    _check_size(agreed, part, part.num_bytes, limits)
    stop = part.offset + part.num_bytes
    if body_size or part.offset < 0 or stop > memory.num_bytes:
        raise ProtocolMismatch(
            f"a piece in bytes {part.offset} to {stop} of the memory that was agreed on, which has "
            f"{memory.num_bytes}, with {body_size} bytes behind it"
        )
    return memory.piece(part.offset, part.num_bytes), memory.carrier


def _check_size(
    agreed: _Agreed, part: Part | SharedPart, size: int, limits: ExchangeLimits
) -> None:
    """Before memory is taken for the body."""
    if part.piece.is_raw != agreed.is_raw:
        raise ProtocolMismatch("a piece is in another form than was agreed on")
    require_size(agreed.sink, part.piece, size, limits.piece_bytes)


async def _refuse(frames: Frames[ToReceiver], error: QuireError, limits: ExchangeLimits) -> None:
    most_bytes = limits.window_bytes + limits.piece_bytes
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(limits.greeting_s):
            await frames.refuse(error.record(), most_bytes)
