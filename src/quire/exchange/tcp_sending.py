"""One connection to another engine: the pieces of a source go out, within a window."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from quire.core.errors import ProtocolMismatch, QuireError, TransferFailed, from_record
from quire.core.exchange import SendTarget
from quire.core.kv_transport import Carrier, KVSource, Piece
from quire.core.wire import PROTOCOL_VERSION
from quire.exchange.buffers import Buffer
from quire.exchange.limits import ExchangeLimits
from quire.exchange.nixl import NixlMemory, NixlWindow, RemoteName
from quire.exchange.ring import Ring
from quire.exchange.shared_window import SharedWindow
from quire.exchange.tcp_frames import (
    ConnectionEnded,
    Frames,
    Greeting,
    Part,
    ReceiverWelcome,
    Refusal,
    SharedPart,
    ToSender,
    Written,
    checksum,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenByNixl:
    """Pieces are read to ``own``, and written from there to memory of the receiver."""

    nixl: NixlMemory
    own: NixlWindow


@dataclass(frozen=True, slots=True)
class PieceMemory:
    """Where the pieces of one send may be: in ``buffer``, which goes through the socket, or in
    memory of which the receiver takes one, if it can."""

    buffer: Buffer
    shared: SharedWindow | None
    by_nixl: WrittenByNixl | None

    def agreed(self, welcome: ReceiverWelcome) -> PiecePlaces | None:
        """Memory that the receiver takes pieces from."""
        if welcome.remote is not None and self.by_nixl is not None:
            return PiecePlaces(self.by_nixl.own.view, self.by_nixl, welcome.remote)
        if welcome.is_shared and self.shared is not None:
            return PiecePlaces(self.shared.view)
        return None


class PiecePlaces:
    """Pieces one behind the other in ``view``, which the receiver reads, or which is written
    to ``there``."""

    def __init__(
        self,
        view: memoryview,
        by_nixl: WrittenByNixl | None = None,
        there: RemoteName | None = None,
    ) -> None:
        size = view.nbytes if there is None else min(view.nbytes, max(0, there.num_bytes))
        self.view = view[:size]
        self.carrier: Carrier = "shared_memory" if there is None else "nixl"
        self._ring = Ring(size)
        self._by_nixl = by_nixl
        self._there = there

    @property
    def num_bytes(self) -> int:
        return self.view.nbytes

    def place(self, size: int, num_sent: int) -> tuple[int, int]:
        """See ``Ring``."""
        return self._ring.place(size, num_sent)

    async def hand_over(self, offset: int, num_bytes: int) -> None:
        """The piece there can be read by the receiver from now on."""
        if self._by_nixl is not None and self._there is not None:
            await self._by_nixl.nixl.write(self._by_nixl.own, self._there, offset, num_bytes)


class Window:
    """Bytes that were sent and are not acknowledged. Belongs to one loop."""

    def __init__(self, limits: ExchangeLimits) -> None:
        self._limits = limits
        self._changed = asyncio.Event()
        self.num_sent = 0
        self.num_written = 0
        self.carriers: set[Carrier] = set()
        """What has carried the pieces that were sent."""
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
                has_nixl=memory.by_nixl is not None,
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


async def _welcomed(frames: Frames[ToSender]) -> ReceiverWelcome:
    try:
        answer, _ = await frames.hear()
    except ConnectionEnded:
        raise TransferFailed("the receiver takes no more connections: try again later") from None
    if isinstance(answer, Refusal):
        raise from_record(answer.error)
    if not isinstance(answer, ReceiverWelcome):
        raise ProtocolMismatch(f"the receiver answered a greeting with {type(answer).__name__}")
    return answer


async def _send_all(
    frames: Frames[ToSender],
    source: KVSource,
    welcome: ReceiverWelcome,
    limits: ExchangeLimits,
    window: Window,
    memory: PieceMemory,
) -> None:
    places = memory.agreed(welcome)
    for piece in source.pieces(is_raw=welcome.is_raw):
        await asyncio.sleep(0)  # a socket that is ready does not yield to the other transfers
        if not source.is_ready(piece):
            await asyncio.to_thread(source.wait, piece)
        size = source.num_bytes(piece)
        await window.shrink_to(max(0, limits.window_bytes - size))
        window.num_sent += size
        async with asyncio.timeout(limits.silence_s):
            if places is None or size > places.num_bytes:
                window.carriers.add("tcp")
                payload = _read(source, piece, memory.buffer.room(size))
                await frames.say(Part(piece=piece, checksum=checksum(payload)), payload)
                continue
            window.carriers.add(places.carrier)
            offset, num_read = places.place(size, window.num_sent)
            await window.shrink_to(window.num_sent - num_read)
            payload = _read(source, piece, places.view[offset : offset + size])
            await places.hand_over(offset, size)
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
