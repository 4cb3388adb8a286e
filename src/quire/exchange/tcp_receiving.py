"""One connection from another engine: pieces come in, are verified, and go to a lease's sink."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from quire.core.errors import ProtocolMismatch, QuireError, TransferFailed
from quire.core.kv_transport import KVSink
from quire.core.wire import PROTOCOL_VERSION
from quire.exchange.agreement import is_raw_between, require_size
from quire.exchange.buffers import Buffer
from quire.exchange.leases import Leases
from quire.exchange.limits import ExchangeLimits
from quire.exchange.shared_window import open_window
from quire.exchange.tcp_frames import (
    ConnectionEnded,
    Frames,
    Greeting,
    Part,
    SharedPart,
    ToReceiver,
    Welcome,
    Written,
    checksum,
)

logger = logging.getLogger(__name__)


async def receive(
    frames: Frames[ToReceiver], leases: Leases, limits: ExchangeLimits, buffer: Buffer
) -> None:
    """Serve one connection until its end. A peer that breaks the protocol, is silent or is cut off
    ends its own connection alone."""
    try:
        async with asyncio.timeout(limits.greeting_s):
            agreed = await _greet(frames, leases, limits)
        await _take_all(frames, agreed, limits, buffer)
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
    """``is_raw``: in which form pieces come. ``shared``: memory in which they may come."""

    sink: KVSink
    is_raw: bool
    shared: memoryview | None


async def _greet(frames: Frames[ToReceiver], leases: Leases, limits: ExchangeLimits) -> _Agreed:
    greeting, _ = await frames.hear()
    if not isinstance(greeting, Greeting):
        raise ProtocolMismatch(f"{type(greeting).__name__} came before a greeting")
    if greeting.version != PROTOCOL_VERSION:
        raise ProtocolMismatch(
            f"the sender speaks protocol version {greeting.version}, this engine "
            f"{PROTOCOL_VERSION}: run the same release of quire on both sides"
        )
    sink = leases.sink_of(greeting.lease, greeting.key, greeting.content)
    is_raw = is_raw_between(greeting.layout, sink)
    shared = None
    if greeting.shared is not None and limits.shares_memory:
        shared = open_window(greeting.shared, limits.window_bytes)
    await frames.say(
        Welcome(piece_bytes=limits.piece_bytes, is_raw=is_raw, is_shared=shared is not None)
    )
    return _Agreed(sink, is_raw, shared)


async def _take_all(
    frames: Frames[ToReceiver], agreed: _Agreed, limits: ExchangeLimits, buffer: Buffer
) -> None:
    num_bytes = 0
    while True:
        await asyncio.sleep(0)  # a socket that is ready does not yield to the other transfers
        async with asyncio.timeout(limits.silence_s):
            part, size = await frames.hear()
            if not isinstance(part, Part | SharedPart):
                raise ProtocolMismatch(f"{type(part).__name__} came where a piece was due")
            if isinstance(part, SharedPart):
                payload = _shared_payload(agreed, part, size, limits)
            else:
                _check_size(agreed, part, size, limits)
                payload = buffer.room(size)
                await frames.fill(payload)
        if checksum(payload) != part.checksum:
            raise TransferFailed(
                f"{payload.nbytes} bytes came damaged (tokens {part.piece.first} to "
                f"{part.piece.first + part.piece.num_tokens - 1}): send them again"
            )
        agreed.sink.write(part.piece, payload)
        num_bytes += payload.nbytes
        async with asyncio.timeout(limits.silence_s):
            await frames.say(Written(num_bytes=num_bytes))


def _shared_payload(
    agreed: _Agreed, part: SharedPart, body_size: int, limits: ExchangeLimits
) -> memoryview:
    _check_size(agreed, part, part.num_bytes, limits)
    shared, stop = agreed.shared, part.offset + part.num_bytes
    if shared is None or body_size or part.offset < 0 or stop > shared.nbytes:
        raise ProtocolMismatch(
            f"a piece in bytes {part.offset} to {stop} of shared memory, of which there are "
            f"{0 if shared is None else shared.nbytes}, with {body_size} bytes behind it"
        )
    return shared[part.offset : stop]


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
