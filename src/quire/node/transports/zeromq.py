"""An engine or encoder in a process of its own, connected over ZeroMQ (ipc, or tcp on loopback).

One ``EngineTransport`` or ``EncoderTransport`` for one life of the process: batches and results are
sent as raw buffers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from quire.core.batch import Batch
from quire.core.batch_result import BatchResult, EngineReport
from quire.core.config import EncoderConfig, EngineConfig
from quire.core.encoding import EncodeBatch, EncodeResult
from quire.core.errors import from_record
from quire.node.supervision.engine_loading import OnProgress
from quire.node.transports.child import ENCODER_COMMAND, ENGINE_COMMAND, LifeLimits
from quire.node.transports.life import ProcessLife, ProcessMessages
from quire.node.transports.message_times import MessageTimeLimit
from quire.node.transports.messages import (
    EncoderOrder,
    Faulted,
    FromEngine,
    LaunchOrder,
    Ready,
    engine_codec,
    node_codec,
)


class ZeroMQTransport:
    """One life of one process. ``on_progress(stage, fraction)`` reports loading.

    ``command`` starts the process; it must behave as ``engine_process`` does, or for an encoder
    as ``encoder_process`` does (``None``: that module). ``name`` is what logs and errors call the
    process (``None``: the name of ``config``, which all replicas share).
    """

    def __init__(
        self,
        config: EngineConfig | EncoderConfig,
        on_progress: OnProgress | None = None,
        limits: LifeLimits | None = None,
        command: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        self._config = config
        known = limits or LifeLimits()
        self._times = MessageTimeLimit(known.least_stuck_s, known.stuck_after_s)
        is_encoder = isinstance(config, EncoderConfig)
        kind = "encoder" if is_encoder else "engine"
        self._order = EncoderOrder if is_encoder else LaunchOrder
        self._answers = (EncodeResult,) if is_encoder else (BatchResult, EngineReport)
        self._life: ProcessLife[FromEngine, Ready] = ProcessLife(
            kind,
            name or config.name,
            command or (ENCODER_COMMAND if is_encoder else ENGINE_COMMAND),
            ProcessMessages(node_codec(), engine_codec(), Ready),
            self._on_message,
            lambda reason: self._on_lost(reason),
            limits=limits,
            on_progress=on_progress,
        )

    @property
    def pid(self) -> int:
        return self._life.pid

    async def start(self, on_answer: Callable[[Any], None], on_lost: Callable[[str], None]) -> Any:
        """Start the process and wait until its model is loaded.

        Raises:
            ProtocolMismatch: the process runs another version.
            QuireError: the error of loading, or ``EngineLost`` if the process died.
        """
        self._on_answer = on_answer
        self._on_lost = on_lost
        config = self._config
        ready = await self._life.start(self._order, config.num_threads, config=config)
        return ready.info

    def send(self, batch: Batch | EncodeBatch) -> None:
        """Send a batch. It is dropped if the engine is lost: ``on_lost`` reports the loss."""
        self._times.sent(time.monotonic())
        self._life.say(batch)

    def silent_s(self) -> float:
        return self._life.silent_s()

    async def close(self) -> None:
        """End the process and release everything. Idempotent."""
        await self._life.close()

    def _on_message(self, message: FromEngine) -> None:
        if isinstance(message, self._answers):
            if not isinstance(message, EngineReport):
                self._times.answered(time.monotonic())
                self._life.limit_messages(self._times.limit_s)
            self._on_answer(message)
        elif isinstance(message, Faulted):
            self._life.lose(from_record(message.error))
        else:
            raise self._life.out_of_turn(message)
