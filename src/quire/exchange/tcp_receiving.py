"""One connection from another engine: pieces come in, are verified, and go to a lease's sink."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from quire.core.errors import ProtocolMismatch, QuireError, TransferFailed
from quire.core.kv_transport import KVSink
from quire.core.wire import PROTOCOL_VERSION
from quire.exchange.buffers import Buffer
from quire.exchange.leases import Leases
from quire.exchange.limits import ExchangeLimits
from quire.exchange.tcp_frames import (
    ConnectionEnded,
    Frames,
    Greeting,
    Part,
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
            sink, is_raw = await _greet(frames, leases, limits)
        await _take_all(frames, sink, is_raw, limits, buffer)
    except ConnectionEnded:
        return
    except QuireError as exc:
        logger.info("a transfer of K and V from another engine is refused: %s", exc)
        await _refuse(frames, exc, limits)
    except TimeoutError:
        logger.info("an engine that sent K and V is silent")
    except OSError as exc:
        logger.info("a transfer of K and V from another engine was cut off: %s", exc)


async def _greet(
    frames: Frames[ToReceiver], leases: Leases, limits: ExchangeLimits
) -> tuple[KVSink, bool]:
    """The sink, and whether raw pieces were agreed on."""
    greeting, _ = await frames.hear()
    if not isinstance(greeting, Greeting):
        raise ProtocolMismatch(f"{type(greeting).__name__} came before a greeting")
    if greeting.version != PROTOCOL_VERSION:
        raise ProtocolMismatch(
            f"the sender speaks protocol version {greeting.version}, this engine "
            f"{PROTOCOL_VERSION}: run the same release of quire on both sides"
        )
    sink = leases.sink_of(greeting.lease, greeting.key, greeting.content)
    is_raw = greeting.layout == sink.layout != ""
    await frames.say(Welcome(piece_bytes=limits.piece_bytes, is_raw=is_raw))
    return sink, is_raw


async def _take_all(
    frames: Frames[ToReceiver],
    sink: KVSink,
    is_raw: bool,
    limits: ExchangeLimits,
    buffer: Buffer,
) -> None:
    num_bytes = 0
    while True:
        await asyncio.sleep(0)  # a socket that is ready does not yield to the other transfers
        async with asyncio.timeout(limits.silence_s):
            part, size = await frames.hear()
            if not isinstance(part, Part):
                raise ProtocolMismatch(f"{type(part).__name__} came where a piece was due")
            if part.piece.is_raw != is_raw:
                raise ProtocolMismatch("a piece is in another form than was agreed on")
            _check_size(sink, part, size, limits)
            payload = buffer.room(size)
            await frames.fill(payload)
        if checksum(payload) != part.checksum:
            raise TransferFailed(
                f"{size} bytes came damaged (tokens {part.piece.first} to "
                f"{part.piece.first + part.piece.num_tokens - 1}): send them again"
            )
        sink.write(part.piece, payload)
        num_bytes += size
        async with asyncio.timeout(limits.silence_s):
            await frames.say(Written(num_bytes=num_bytes))


def _check_size(sink: KVSink, part: Part, size: int, limits: ExchangeLimits) -> None:
    """Before memory is taken for the body."""
    expected = sink.num_bytes(part.piece)
    if size != expected or size > limits.piece_bytes:
        raise ProtocolMismatch(
            f"a piece of {size} bytes, where {part.piece} has {expected} and at most "
            f"{limits.piece_bytes} are taken"
        )


async def _refuse(frames: Frames[ToReceiver], error: QuireError, limits: ExchangeLimits) -> None:
    most_bytes = limits.window_bytes + limits.piece_bytes
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(limits.greeting_s):
            await frames.refuse(error.record(), most_bytes)
