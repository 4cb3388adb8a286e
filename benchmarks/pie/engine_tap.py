"""Sends messages to a node's engine directly: the baseline runs in the same engine process as
programs.

Two processes with the same model differ by up to a tenth on the same steps, because of where their
memory is, which exceeds the measured differences. Owns only this access; while ``execute`` is used,
no program may run on the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

from quire.core.batch import Batch
from quire.core.batch_result import BatchResult, EngineAnswer
from quire.core.config import EngineConfig
from quire.core.engine_info import EngineInfo
from quire.node.transports.zeromq import ZeroMQTransport


class TappedEngine:
    """Implements ``EngineTransport`` for a node; ``execute`` is for another thread."""

    info: EngineInfo

    def __init__(self, config: EngineConfig) -> None:
        self._transport = ZeroMQTransport(config)
        self._waiting: Future[BatchResult] | None = None

    async def start(
        self, on_answer: Callable[[EngineAnswer], None], on_lost: Callable[[str], None]
    ) -> EngineInfo:
        self._loop = asyncio.get_running_loop()
        self._on_answer, self._on_lost = on_answer, on_lost
        self.info = await self._transport.start(self._arrive, self._lose)
        return self.info

    def send(self, batch: Batch) -> None:
        self._transport.send(batch)

    def silent_s(self) -> float:
        return self._transport.silent_s()

    async def close(self) -> None:
        await self._transport.close()

    def execute(self, batch: Batch) -> BatchResult:
        """Send ``batch``, bypassing the node, and wait for its result.

        Raises:
            RuntimeError: the engine is lost.
        """
        waiting: Future[BatchResult] = Future()
        self._waiting = waiting
        self._loop.call_soon_threadsafe(self._transport.send, batch)
        return waiting.result()

    def _arrive(self, answer: EngineAnswer) -> None:
        if self._waiting is None or not isinstance(answer, BatchResult):
            self._on_answer(answer)
        else:
            waiting, self._waiting = self._waiting, None
            waiting.set_result(answer)

    def _lose(self, reason: str) -> None:
        if self._waiting is not None:
            self._waiting.set_exception(RuntimeError(reason))
        self._on_lost(reason)
