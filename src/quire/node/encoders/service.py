"""One encoder that is kept running, and those who wait for its rows.

Lives on the edge's loop. Owns the encoder's queue and the batches under way; it is kept running by
a supervisor, as engines are. Encoding is pure, so what a lost encoder had at hand is
given to the next one, once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from quire.core.batch import F32, EngineAnswer
from quire.core.config import EncoderConfig
from quire.core.encoding import EncodeBatch, EncodeResult, EncoderInfo
from quire.core.errors import (
    EngineLost,
    ErrorRecord,
    InvalidArgument,
    QuireError,
    from_record,
)
from quire.core.ids import EngineId, ModelId, TenantId
from quire.core.interfaces import Clock
from quire.engine.encoders.text import EncodedText, EncoderTexts
from quire.node.encoders.queue import EncodeQueue, Item, Job, batch_of
from quire.node.encoders.transport import EncoderTransports
from quire.node.engine_loading import OnProgress
from quire.node.health import EngineHealth, EngineReadiness
from quire.node.supervisor import EngineSupervisor, RestartLimits

_MAX_BATCHES = 2
"""One runs while the next one waits at the encoder, so that it is never idle between two."""


class EncoderService:
    """``on_change`` is called after each change of ``health``."""

    def __init__(
        self,
        config: EncoderConfig,
        transports: EncoderTransports,
        *,
        clock: Clock,
        on_change: Callable[[], None],
        on_progress: OnProgress,
        limits: RestartLimits | None = None,
    ) -> None:
        self.name = config.name
        self._config = config
        self._transports = transports
        self._queue = EncodeQueue(config.max_pending, config.max_batch_tokens)
        self._numbers = itertools.count(1)
        self._running: dict[int, list[Item]] = {}
        self._futures: dict[Job, asyncio.Future[None]] = {}
        self._to_encoder: Callable[[EncodeBatch], None] | None = None
        self._info: EncoderInfo | None = None
        self._texts: EncoderTexts | None = None
        self._supervisor = EngineSupervisor(
            EngineId(config.name),
            config,
            transports.make,
            self,
            clock=clock,
            prepare=self._prepare,
            on_ready=lambda info: None,
            on_change=on_change,
            on_progress=lambda stage, done: on_progress(f"{config.name}: {stage}", done),
            limits=limits,
        )

    # -- what is there -----------------------------------------------------------------------------

    @property
    def health(self) -> EngineHealth:
        return self._supervisor.health

    @property
    def info(self) -> EncoderInfo:
        """Raises ``EngineLost``: it is not loaded yet, or given up."""
        self._check_alive()
        if self._info is None:
            raise EngineLost(f"encoder {self.name} is still being loaded: try again in a moment")
        return self._info

    @property
    def texts(self) -> EncoderTexts:
        """How texts become its sequences. Raises as ``info``."""
        assert self.info is not None
        assert self._texts is not None, "what is loaded has its texts"
        return self._texts

    async def encode(self, tenant: TenantId, sequences: Sequence[EncodedText]) -> F32:
        """A row for each of ``sequences`` [S, D]. Cancel it and nothing more is computed for it.

        Raises:
            QuotaExceeded: too many sequences of the tenant are waiting.
            EngineLost: the encoder was lost twice under one of them, or is given up.
            InvalidArgument: a sequence that the model cannot run.
        """
        check_sequences(self.info, sequences)
        rows = np.empty((len(sequences), self.info.dimensions), np.float32)
        job = Job(tenant, sequences, rows, len(sequences))
        if not sequences:
            return rows
        self._queue.add(job)
        future = self._futures[job] = asyncio.get_running_loop().create_future()
        try:
            self._send()
            await future
            return rows
        finally:
            self._queue.end(job)
            del self._futures[job]

    async def wait_idle(self) -> None:
        """Returns when nobody waits for a row."""
        while self._futures:
            await asyncio.wait(list(self._futures.values()))
            await asyncio.sleep(0)

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._supervisor.start()

    async def wait_ready(self) -> None:
        """Raises ``QuireError``: it was given up, or stopped, before it was ever ready."""
        await self._supervisor.wait_ready()

    async def stop(self) -> None:
        """End it; who still waits is told at once. Idempotent."""
        stopped = EngineLost(f"encoder {self.name} has been stopped")
        self._fail_all(stopped)
        await self._supervisor.stop()
        self._fail_all(stopped)

    async def _prepare(self) -> None:
        if self._texts is None:
            read = self._transports.read_texts
            self._texts = await asyncio.to_thread(read, self._config.source)

    def _check_alive(self) -> None:
        health = self.health
        if health.state in (EngineReadiness.FAILED, EngineReadiness.STOPPED):
            raise EngineLost(f"encoder {self.name} cannot be served: {health.detail}")

    # -- what the supervisor tells -----------------------------------------------------------------

    def engine_up(
        self,
        engine: EngineId,
        model: ModelId,
        info: EncoderInfo,
        send: Callable[[EncodeBatch], None],
    ) -> None:
        self._info = info
        self._to_encoder = send
        self._send()

    def engine_answered(self, engine: EngineId, answer: EngineAnswer | EncodeResult) -> None:
        assert isinstance(answer, EncodeResult)
        self._on_result(answer)

    def engine_down(self, engine: EngineId, error: ErrorRecord) -> None:
        self._to_encoder = None
        self._recover()

    def engine_given_up(self, engine: EngineId, model: ModelId, error: ErrorRecord) -> None:
        self._fail_all(EngineLost(f"encoder {self.name} cannot be served: {error.message}"))

    # -- batches -----------------------------------------------------------------------------------

    def _send(self) -> None:
        while self._to_encoder is not None and len(self._running) < _MAX_BATCHES:
            items = self._queue.next_items()
            if not items:
                return
            number = next(self._numbers)
            self._running[number] = items
            self._to_encoder(batch_of(number, items))

    def _on_result(self, result: EncodeResult) -> None:
        items = self._running.pop(result.number, [])
        if result.error is not None:
            for item in items:
                self._end(item.job, from_record(result.error))
        else:
            for item, row in zip(items, result.rows, strict=True):
                item.job.rows[item.index] = row
                item.job.num_left -= 1
                if not item.job.num_left:
                    self._end(item.job, None)
        self._send()

    def _recover(self) -> None:
        """The encoder is lost with what it had at hand, which is tried once more."""
        items = [item for number in sorted(self._running) for item in self._running[number]]
        self._running.clear()
        for item in items:
            item.num_losses += 1
            if item.num_losses > 1:
                error = f"encoder {self.name} was lost twice while it ran this request"
                self._end(item.job, EngineLost(error))
        self._queue.again([item for item in items if not item.job.over])

    def _fail_all(self, error: QuireError) -> None:
        for job in list(self._futures):
            self._end(job, error)

    def _end(self, job: Job, error: QuireError | None) -> None:
        self._queue.end(job)
        future = self._futures.get(job)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def check_sequences(info: EncoderInfo, sequences: Sequence[EncodedText]) -> None:
    """Before they share a batch with those of others.

    Raises:
        InvalidArgument: a sequence that the model cannot run.
    """
    for index, one in enumerate(sequences):
        if not 1 <= len(one.tokens) <= info.max_tokens or len(one.types) != len(one.tokens):
            raise InvalidArgument(
                f"sequence {index} has {len(one.tokens)} tokens; the model reads 1 to "
                f"{info.max_tokens}"
            )
        if min(one.tokens) < 0 or max(one.tokens) >= info.vocab_size:
            raise InvalidArgument(
                f"sequence {index} has token {max(one.tokens)}, but the model has "
                f"{info.vocab_size} tokens"
            )
        if min(one.types) < 0 or max(one.types) >= info.num_types:
            raise InvalidArgument(
                f"sequence {index} is of {max(one.types) + 1} segments; the model tells "
                f"{info.num_types} apart"
            )
