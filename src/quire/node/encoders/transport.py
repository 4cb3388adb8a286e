"""How the node reaches an encoder: in a process of its own, or in this one for tests.

Owns the process, its socket and the handshake. Must not know who waits for what.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from quire.core.config import EncoderConfig
from quire.core.encoding import EncodeBatch, EncoderCore, EncodeResult, EncoderInfo
from quire.core.errors import EngineLost, ProtocolMismatch, QuireError, from_record
from quire.core.wire import PROTOCOL_VERSION
from quire.engine.encoders.text import EncoderTexts, load_texts
from quire.node.encoders.messages import (
    EncoderOrder,
    EncoderReady,
    FromEncoder,
    from_encoder_codec,
    to_encoder_codec,
)
from quire.node.engine_loading import OnProgress
from quire.node.loops import call_on
from quire.node.transports.child import LifeLimits, NodeChild
from quire.node.transports.greeting import greet
from quire.node.transports.messages import Hello, LoadFailed, Progress, Refused
from quire.node.transports.socket import PairSocket

ENCODER_COMMAND = (sys.executable, "-P", "-m", "quire.node.encoder_process")

OnResult = Callable[[EncodeResult], None]
OnLost = Callable[[str], None]


class EncoderTransport(Protocol):
    """One life of one encoder. Belongs to the loop that starts it."""

    async def start(self, on_result: OnResult, on_lost: OnLost) -> EncoderInfo:
        """Raises ``QuireError``: it cannot be loaded. After ``on_lost`` no result comes."""
        ...

    def send(self, batch: EncodeBatch) -> None: ...

    async def close(self) -> None:
        """End it and release everything. Idempotent."""
        ...


class EncoderProcess:
    """``EncoderTransport`` over ZeroMQ. ``command`` must do what ``node.encoder_process`` does."""

    def __init__(
        self,
        config: EncoderConfig,
        on_progress: OnProgress,
        limits: LifeLimits | None = None,
        command: Sequence[str] = ENCODER_COMMAND,
    ) -> None:
        self._config = config
        self._on_progress = on_progress
        self._token = secrets.token_hex(16)
        self._welcomed = False
        self._gone = False
        self._spawned = False
        self._decoder = from_encoder_codec()
        self._encoder = to_encoder_codec()
        self._socket = PairSocket(self._on_frames)
        self._child = NodeChild(
            config.name, self._on_exit, limits or LifeLimits(), command, kind="encoder"
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    async def start(self, on_result: OnResult, on_lost: OnLost) -> EncoderInfo:
        self._on_result = on_result
        self._on_lost = on_lost
        self._ready: asyncio.Future[EncoderInfo] = asyncio.get_running_loop().create_future()
        order = EncoderOrder(
            version=PROTOCOL_VERSION,
            endpoint=self._socket.open(),
            token=self._token,
            config=self._config,
        )
        await self._child.spawn(order, self._config.num_threads)
        self._spawned = True
        return await self._ready

    def send(self, batch: EncodeBatch) -> None:
        if not self._gone:
            self._socket.send(self._encoder.encode(batch))

    async def close(self) -> None:
        self._gone = True
        if self._spawned:
            await self._child.close()
        self._socket.close()

    def _on_frames(self, frames: list[bytes]) -> None:
        if self._gone:
            return
        try:
            self._on_message(self._decoder.decode(frames))
        except ProtocolMismatch as exc:
            self._socket.send(self._encoder.encode(Refused(error=exc.record())))
            self._lose(exc)

    def _on_message(self, message: FromEncoder) -> None:
        match message:
            case EncodeResult() if self._ready.done():
                self._on_result(message)
            case Hello() if not self._welcomed:
                self._greet(message)
            case Progress() if self._welcomed:
                self._on_progress(message.stage, message.fraction)
            case EncoderReady() if self._welcomed and not self._ready.done():
                self._ready.set_result(message.info)
            case LoadFailed() if self._welcomed:
                self._lose(from_record(message.error))
            case _:
                raise ProtocolMismatch(
                    f"encoder {self._config.name} sent {type(message).__name__} out of turn"
                )

    def _greet(self, hello: Hello) -> None:
        welcome = greet(hello, self._token, f"encoder {self._config.name}")
        self._welcomed = True
        self._socket.send(self._encoder.encode(welcome))

    def _on_exit(self, reason: str) -> None:
        self._lose(EngineLost(f"encoder {self._config.name} is lost: {reason}"))

    def _lose(self, error: QuireError) -> None:
        """Before it is ready this is ``start``'s error, afterwards the loss of the encoder."""
        if self._gone:
            return
        self._gone = True
        if self._ready.done():
            self._on_lost(error.message)
        else:
            self._ready.set_exception(error)


class InProcessEncoder:
    """``EncoderTransport`` on a thread of this process. ``load`` makes the encoder there."""

    def __init__(self, load: Callable[[], EncoderCore]) -> None:
        self._load = load
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="quire-encoder")
        self._closed = False

    async def start(self, on_result: OnResult, on_lost: OnLost) -> EncoderInfo:
        self._loop = asyncio.get_running_loop()
        self._on_result = on_result
        self._on_lost = on_lost
        self._core = await self._loop.run_in_executor(self._thread, self._load)
        return self._core.info

    def send(self, batch: EncodeBatch) -> None:
        if not self._closed:
            self._thread.submit(self._work, batch)

    async def close(self) -> None:
        self._closed = True
        await asyncio.to_thread(self._thread.shutdown)

    def _work(self, batch: EncodeBatch) -> None:
        try:
            result = self._core.encode(batch)
        except Exception as exc:  # as the loss of a process would be
            call_on(self._loop, self._on_lost, f"{type(exc).__name__}: {exc}")
        else:
            call_on(self._loop, self._on_result, result)


@dataclass(frozen=True, slots=True)
class EncoderTransports:
    """Where encoders and what they know of texts come from. ``read_texts`` gets a source and may
    block."""

    make: Callable[[EncoderConfig, OnProgress], EncoderTransport] = EncoderProcess
    read_texts: Callable[[str], EncoderTexts] = load_texts


__all__ = [
    "ENCODER_COMMAND",
    "EncoderProcess",
    "EncoderTransport",
    "EncoderTransports",
    "InProcessEncoder",
]
