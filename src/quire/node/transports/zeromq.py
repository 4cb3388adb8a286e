"""An engine in a process of its own, spoken to over ZeroMQ (ipc, or tcp on loopback).

Joins the socket (``socket``) and the process (``child``) into one ``EngineTransport``: the
handshake with versions and token, loading with progress, then batches and results as raw buffers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence

from quire.core.batch import Batch, BatchResult
from quire.core.config import EngineConfig
from quire.core.engine_info import EngineInfo
from quire.core.errors import EngineLost, ProtocolMismatch, QuireError, from_record
from quire.core.wire import PROTOCOL_VERSION
from quire.node.engine_loading import OnProgress
from quire.node.transports.child import ENGINE_COMMAND, LifeLimits, NodeChild
from quire.node.transports.greeting import greet
from quire.node.transports.messages import (
    Faulted,
    FromEngine,
    Hello,
    LaunchOrder,
    LoadFailed,
    Progress,
    Ready,
    Refused,
    ToEngine,
    engine_codec,
    node_codec,
)
from quire.node.transports.socket import PairSocket

logger = logging.getLogger(__name__)


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
        self._on_progress = on_progress
        self._token = secrets.token_hex(16)
        self._welcomed = False
        self._gone = False
        self._decoder = engine_codec()
        self._encoder = node_codec()
        self._socket = PairSocket(self._on_frames)
        self._child = NodeChild(config.name, self._on_exit, limits or LifeLimits(), command)
        self._spawned = False

    @property
    def pid(self) -> int:
        return self._child.pid

    async def start(
        self, on_result: Callable[[BatchResult], None], on_lost: Callable[[str], None]
    ) -> EngineInfo:
        """Start the process and wait until its model is loaded.

        Raises:
            ProtocolMismatch: the process runs another version.
            QuireError: what loading raised there, or ``EngineLost`` if it died.
        """
        self._on_result = on_result
        self._on_lost = on_lost
        self._ready: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        endpoint = self._socket.open()
        await self._child.spawn(
            LaunchOrder(
                version=PROTOCOL_VERSION,
                endpoint=endpoint,
                token=self._token,
                config=self._config,
            ),
            self._config.num_threads,
        )
        self._spawned = True
        return await self._ready

    def send(self, batch: Batch) -> None:
        """Nothing is sent to an engine that is gone; ``on_lost`` has said so or is about to."""
        if not self._gone:
            self._socket.send(self._encoder.encode(batch))

    async def close(self) -> None:
        """End the process and release everything. Idempotent."""
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
            self._refuse(exc)

    def _on_message(self, message: FromEngine) -> None:
        match message:
            case BatchResult() if self._ready.done():
                self._on_result(message)
            case Hello() if not self._welcomed:
                self._greet(message)
            case Progress() if self._welcomed:
                if self._on_progress is not None:
                    self._on_progress(message.stage, message.fraction)
            case Ready() if self._welcomed:
                self._ready.set_result(message.info)
            case LoadFailed() if self._welcomed:
                self._lose(from_record(message.error))
            case Faulted():
                self._lose(from_record(message.error))
            case _:
                raise ProtocolMismatch(
                    f"engine {self._config.name} sent {type(message).__name__} out of turn"
                )

    def _greet(self, hello: Hello) -> None:
        welcome = greet(hello, self._token, f"engine {self._config.name}")
        self._welcomed = True
        self._say(welcome)

    def _refuse(self, error: ProtocolMismatch) -> None:
        self._say(Refused(error=error.record()))
        self._lose(error)

    def _say(self, message: ToEngine) -> None:
        self._socket.send(self._encoder.encode(message))

    def _on_exit(self, reason: str) -> None:
        self._lose(EngineLost(f"engine {self._config.name} is lost: {reason}"))

    def _lose(self, error: QuireError) -> None:
        """Before it is ready this is ``start``'s error, afterwards the loss of the engine."""
        if self._gone:
            return
        self._gone = True
        if self._ready.done():
            self._on_lost(error.message)
        else:
            self._ready.set_exception(error)


__all__ = ["ZeroMQTransport"]
