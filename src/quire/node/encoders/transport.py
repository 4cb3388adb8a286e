"""How the node reaches an encoder: in a process of its own, or in this one for tests.

Must not know who waits for what.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from quire.core.config import EncoderConfig
from quire.core.encoding import EncodeBatch, EncoderCore, EncodeResult, EncoderInfo
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
from quire.node.transports.child import LifeLimits
from quire.node.transports.life import ProcessLife, Speech

ENCODER_COMMAND = (sys.executable, "-P", "-m", "quire.node.encoder_process")

OnResult = Callable[[EncodeResult], None]
OnLost = Callable[[str], None]


class EncoderTransport(Protocol):
    """One life of one encoder. Belongs to the loop that starts it."""

    async def start(self, on_result: OnResult, on_lost: OnLost) -> EncoderInfo:
        """Raises ``QuireError``: it cannot be loaded. After ``on_lost`` no result comes."""
        ...

    def send(self, batch: EncodeBatch) -> None: ...

    def silent_s(self) -> float:
        """See ``EngineTransport``."""
        ...

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
        self._life: ProcessLife[FromEncoder, EncoderReady] = ProcessLife(
            "encoder",
            config.name,
            command,
            Speech(to_encoder_codec(), from_encoder_codec(), EncoderReady),
            self._on_message,
            lambda reason: self._on_lost(f"encoder {config.name} is lost: {reason}"),
            limits=limits,
            on_progress=on_progress,
        )

    @property
    def pid(self) -> int:
        return self._life.pid

    async def start(self, on_result: OnResult, on_lost: OnLost) -> EncoderInfo:
        self._on_result = on_result
        self._on_lost = on_lost
        config = self._config
        ready = await self._life.start(EncoderOrder, config.num_threads, config=config)
        return ready.info

    def send(self, batch: EncodeBatch) -> None:
        self._life.say(batch)

    def silent_s(self) -> float:
        return self._life.silent_s()

    async def close(self) -> None:
        await self._life.close()

    def _on_message(self, message: FromEncoder) -> None:
        if not isinstance(message, EncodeResult):
            raise self._life.out_of_turn(message)
        self._on_result(message)


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

    def silent_s(self) -> float:
        return 0.0

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
