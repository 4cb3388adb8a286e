"""An engine in a process of its own, spoken to over ZeroMQ (ipc, or tcp on loopback).

One ``EngineTransport`` for one life of the process: batches and results go as raw buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire.core.batch import Batch, BatchResult, EngineAnswer, TransfersEnded
from quire.core.config import EngineConfig
from quire.core.engine_info import EngineInfo
from quire.core.errors import from_record
from quire.node.engine_loading import OnProgress
from quire.node.transports.child import ENGINE_COMMAND, LifeLimits
from quire.node.transports.life import ProcessLife, Speech
from quire.node.transports.messages import (
    Faulted,
    FromEngine,
    LaunchOrder,
    Ready,
    engine_codec,
    node_codec,
)


class ZeroMQTransport:
    """One life of one engine process. ``on_progress(stage, fraction)`` reports loading.

    ``command`` starts the process; it must do what ``quire.node.engine_process`` does.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_progress: OnProgress | None = None,
        limits: LifeLimits | None = None,
        command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        self._config = config
        self._life: ProcessLife[FromEngine, Ready] = ProcessLife(
            "engine",
            config.name,
            command,
            Speech(node_codec(), engine_codec(), Ready),
            self._on_message,
            lambda reason: self._on_lost(f"engine {config.name} is lost: {reason}"),
            limits=limits,
            on_progress=on_progress,
        )

    @property
    def pid(self) -> int:
        return self._life.pid

    async def start(
        self, on_answer: Callable[[EngineAnswer], None], on_lost: Callable[[str], None]
    ) -> EngineInfo:
        """Start the process and wait until its model is loaded.

        Raises:
            ProtocolMismatch: the process runs another version.
            QuireError: what loading raised there, or ``EngineLost`` if it died.
        """
        self._on_answer = on_answer
        self._on_lost = on_lost
        config = self._config
        ready = await self._life.start(LaunchOrder, config.num_threads, config=config)
        return ready.info

    def send(self, batch: Batch) -> None:
        """Nothing is sent to an engine that is gone; ``on_lost`` has said so or is about to."""
        self._life.say(batch)

    def silent_s(self) -> float:
        return self._life.silent_s()

    async def close(self) -> None:
        """End the process and release everything. Idempotent."""
        await self._life.close()

    def _on_message(self, message: FromEngine) -> None:
        match message:
            case BatchResult() | TransfersEnded():
                self._on_answer(message)
            case Faulted():
                self._life.lose(from_record(message.error))
            case _:
                raise self._life.out_of_turn(message)
