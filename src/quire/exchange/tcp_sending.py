"""One connection to another engine: the pieces of a source go out, within a window."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from quire.core.errors import ProtocolMismatch, QuireError, TransferFailed, from_record
from quire.core.exchange import SendTarget
from quire.core.kv_transport import KVSource, Piece
from quire.core.wire import PROTOCOL_VERSION
from quire.exchange.buffers import Buffer
from quire.exchange.limits import ExchangeLimits
from quire.exchange.ring import Ring
from quire.exchange.shared_window import SharedWindow
from quire.exchange.tcp_frames import (
    ConnectionEnded,
    Frames,
    Greeting,
    Part,
    Refusal,
    SharedPart,
    ToSender,
    Welcome,
    Written,
    checksum,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PieceMemory:
    """Where the pieces of one send are. ``shared``: None if none may be."""

    buffer: Buffer
    shared: SharedWindow | None


class Window:
    """Bytes that were sent and are not acknowledged. Belongs to one loop."""

    def __init__(self, limits: ExchangeLimits) -> None:
        self._limits = limits
        self._changed = asyncio.Event()
        self.num_sent = 0
        self.num_written = 0
        self.error: QuireError | None = None

    def written(self, num_bytes: int) -> None:
        """Raises ``ProtocolMismatch`` for bytes that were not sent."""
        if not self.num_written < num_bytes <= self.num_sent:
            raise ProtocolMismatch(
                f"the receiver has written {num_bytes} bytes, {self.num_sent} were sent"
            )
        self.num_written = num_bytes
        self._changed.set()

    def fail(self, error: QuireError) -> None:
        self.error = error
        self._changed.set()

    async def shrink_to(self, num_bytes: int) -> None:
        """Wait until at most so many bytes are not acknowledged.

        Raises:
            QuireError: the send has failed.
            TimeoutError: no acknowledgement came for too long.
        """
        while self.num_sent - self.num_written > num_bytes and self.error is None:
            self._changed.clear()
            async with asyncio.timeout(self._limits.silence_s):
                await self._changed.wait()
        if self.error is not None:
            raise self.error


async def send(
    frames: Frames[ToSender],
    target: SendTarget,
    source: KVSource,
    limits: ExchangeLimits,
    window: Window,
    memory: PieceMemory,
) -> None:
    """Send all pieces; returns when the receiver has written them.

    Raises:
        QuireError: the receiver's error, or ``TransferFailed``.
        OSError, TimeoutError: the receiver is gone or silent.
    """
    async with asyncio.timeout(limits.greeting_s):
        await frames.say(
            Greeting(
                version=PROTOCOL_VERSION,
                lease=target.lease,
                key=target.key,
                content=source.content,
                layout=source.layout,
                shared=None if memory.shared is None else memory.shared.name,
            )
        )
        welcome = await _welcomed(frames)
    hearing = asyncio.create_task(_hear_all(frames, window))
    try:
        await _send_all(frames, source, welcome, limits, window, memory)
    except TimeoutError:  # which is an OSError
        raise
    except OSError:
        await asyncio.wait({hearing}, timeout=limits.greeting_s)  # it may have heard the reason
        if window.error is not None:
            raise window.error from None
        raise
    finally:
        hearing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await hearing


async def _welcomed(frames: Frames[ToSender]) -> Welcome:
    try:
        answer, _ = await frames.hear()
    except ConnectionEnded:
        raise TransferFailed("the receiver takes no more connections: try again later") from None
    if isinstance(answer, Refusal):
        raise from_record(answer.error)
    if not isinstance(answer, Welcome):
        raise ProtocolMismatch(f"the receiver answered a greeting with {type(answer).__name__}")
    return answer


async def _send_all(
    frames: Frames[ToSender],
    source: KVSource,
    welcome: Welcome,
    limits: ExchangeLimits,
    window: Window,
    memory: PieceMemory,
) -> None:
    shared = memory.shared.view if memory.shared is not None and welcome.is_shared else None
    ring = None if shared is None else Ring(shared.nbytes)
    for piece in source.pieces(is_raw=welcome.is_raw):
        await asyncio.sleep(0)  # a socket that is ready does not yield to the other transfers
        if not source.is_ready(piece):
            await asyncio.to_thread(source.wait, piece)
        size = source.num_bytes(piece)
        await window.shrink_to(max(0, limits.window_bytes - size))
        window.num_sent += size
        async with asyncio.timeout(limits.silence_s):
            if shared is None or ring is None or size > shared.nbytes:
                payload = _read(source, piece, memory.buffer.room(size))
                await frames.say(Part(piece=piece, checksum=checksum(payload)), payload)
                continue
            offset, num_read = ring.place(size, window.num_sent)
            await window.shrink_to(window.num_sent - num_read)
            payload = _read(source, piece, shared[offset : offset + size])
            await frames.say(
                SharedPart(piece=piece, checksum=checksum(payload), offset=offset, num_bytes=size)
            )
    await window.shrink_to(0)


def _read(source: KVSource, piece: Piece, payload: memoryview) -> memoryview:
    try:
        source.read(piece, payload)
        return payload
    except Exception as exc:
        logger.exception("K and V cannot be read")
        raise TransferFailed(f"K and V cannot be read: {exc!r}") from exc


async def _hear_all(frames: Frames[ToSender], window: Window) -> None:
    """Hear acknowledgements; any other end of the connection fails the send."""
    try:
        while True:
            answer, _ = await frames.hear()
            match answer:
                case Written(num_bytes=num_bytes):
                    window.written(num_bytes)
                case Refusal(error=error):
                    raise from_record(error)
                case _:
                    raise ProtocolMismatch(f"{type(answer).__name__} came out of turn")
    except QuireError as exc:
        window.fail(exc)
    except (ConnectionEnded, OSError) as exc:
        window.fail(TransferFailed(f"the receiver has closed the connection: {exc}"))
