"""One encoder that is kept running, and those who wait for its rows.

Lives on the edge's loop. Owns the encoder's lives (started again after a loss, given up after too
many), its queue and the batches under way. Encoding is pure, so what a lost encoder had at hand is
given to the next one, once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from quire.core.batch import F32
from quire.core.config import EncoderConfig
from quire.core.encoding import EncodeResult, EncoderInfo
from quire.core.errors import (
    ConfigError,
    EngineLost,
    InvalidArgument,
    ModelError,
    ProtocolMismatch,
    QuireError,
    from_record,
)
from quire.core.ids import TenantId
from quire.engine.encoders.text import EncodedText, EncoderTexts
from quire.node.encoders.queue import EncodeQueue, Item, Job, batch_of
from quire.node.encoders.transport import EncoderTransport, EncoderTransports
from quire.node.engine_loading import OnProgress
from quire.node.health import TRANSITIONS, EngineHealth, EngineState, with_silence
from quire.node.supervisor import RestartLimits

logger = logging.getLogger(__name__)

_MAX_BATCHES = 2
"""One runs while the next one waits at the encoder, so that it is never idle between two."""
_HOPELESS = (ModelError, ConfigError, ProtocolMismatch)
"""Starting again would end in the same error."""


class EncoderService:
    """``on_change`` is called after each change of ``health``."""

    def __init__(
        self,
        config: EncoderConfig,
        transports: EncoderTransports,
        *,
        on_change: Callable[[], None],
        on_progress: OnProgress,
        limits: RestartLimits | None = None,
    ) -> None:
        self.name = config.name
        self._config = config
        self._transports = transports
        self._on_change = on_change
        self._listener = on_progress
        self._limits = limits or RestartLimits()
        self._losses: deque[float] = deque()
        self._queue = EncodeQueue(config.max_pending, config.max_batch_tokens)
        self._numbers = itertools.count(1)
        self._running: dict[int, list[Item]] = {}
        self._futures: dict[Job, asyncio.Future[None]] = {}
        self._transport: EncoderTransport | None = None
        self._health = EngineHealth(EngineState.LOADING, "starting")
        self._info: EncoderInfo | None = None
        self._texts: EncoderTexts | None = None
        self._settled = asyncio.Event()
        self._error: QuireError | None = None
        self._task: asyncio.Task[None] | None = None

    # -- what is there -----------------------------------------------------------------------------

    @property
    def health(self) -> EngineHealth:
        transport = self._transport
        return with_silence(self._health, 0.0 if transport is None else transport.silent_s())

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

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"encoder {self.name}")

    async def wait_ready(self) -> None:
        """Raises ``QuireError``: it was given up, or stopped, before it was ever ready."""
        await self._settled.wait()
        if self._info is None:
            raise self._error or EngineLost(f"encoder {self.name} was stopped while loading")

    async def stop(self) -> None:
        """End it; who still waits is told at once. Idempotent."""
        stopped = EngineLost(f"encoder {self.name} has been stopped")
        self._fail_all(stopped)
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._health.state is not EngineState.STOPPED:
            self._move(EngineState.STOPPED, "stopped")
        self._fail_all(stopped)
        self._settled.set()

    async def _run(self) -> None:
        while True:
            try:
                error = await self._live()
            except Exception as exc:  # a bug of ours: say so instead of going quiet
                logger.exception("encoder %s cannot be kept running", self.name)
                self._give_up(EngineLost(f"encoder {self.name} failed: {exc!r}"))
                return
            if isinstance(error, _HOPELESS) or self._is_crash_loop():
                self._give_up(error)
                return
            logger.warning("encoder %s is started again: %s", self.name, error.message)
            self._move(EngineState.RESTARTING, error.message, self._health.restarts + 1)
            doubled = self._limits.first_pause_s * 2.0 ** (len(self._losses) - 1)
            await asyncio.sleep(min(doubled, self._limits.max_pause_s))

    async def _live(self) -> QuireError:
        """One life of the encoder; returns why it ended."""
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_lost(reason: str) -> None:
            if not lost.done():
                lost.set_result(reason)

        transport = self._transports.make(self._config, self._on_progress)
        try:
            if self._texts is None:
                self._texts = await asyncio.to_thread(
                    self._transports.read_texts, self._config.source
                )
            self._info = await transport.start(self._on_result, on_lost)
            self._transport = transport
            self._move(EngineState.READY)
            self._settled.set()
            self._send()
            return EngineLost(await lost)
        except QuireError as exc:
            return exc
        finally:
            self._transport = None
            self._recover()
            await transport.close()

    def _is_crash_loop(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        self._losses.append(now_s)
        while now_s - self._losses[0] > self._limits.window_s:
            self._losses.popleft()
        return len(self._losses) >= self._limits.max_losses

    def _give_up(self, error: QuireError) -> None:
        logger.error("encoder %s is given up: %s", self.name, error.message)
        self._error = error
        self._move(EngineState.FAILED, error.message)
        self._fail_all(EngineLost(f"encoder {self.name} cannot be served: {error.message}"))
        self._settled.set()

    def _check_alive(self) -> None:
        if self._health.state in (EngineState.FAILED, EngineState.STOPPED):
            raise EngineLost(f"encoder {self.name} cannot be served: {self._health.detail}")

    def _on_progress(self, stage: str, fraction: float) -> None:
        health = self._health
        detail = stage if health.state is EngineState.LOADING else health.detail
        self._health = EngineHealth(health.state, detail, health.restarts, fraction)
        self._listener(f"{self.name}: {stage}", fraction)

    def _move(self, state: EngineState, detail: str = "", restarts: int | None = None) -> None:
        health = self._health
        assert state in TRANSITIONS[health.state], f"{health.state} -> {state}"
        count = health.restarts if restarts is None else restarts
        progress = 1.0 if state is EngineState.READY else 0.0
        self._health = EngineHealth(state, detail, count, progress)
        self._on_change()

    # -- batches -----------------------------------------------------------------------------------

    def _send(self) -> None:
        while self._transport is not None and len(self._running) < _MAX_BATCHES:
            items = self._queue.next_items()
            if not items:
                return
            number = next(self._numbers)
            self._running[number] = items
            self._transport.send(batch_of(number, items))

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
