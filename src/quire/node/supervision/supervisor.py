"""Keeps an engine or encoder running: starts it, notices its loss, starts it again, gives up on a
crash loop.

Owns the engine's transport and its state; notifies its owner when the engine is up or down. Must
not know what kind of transport it has, nor what the engine's answers mean.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from quire.core.batch_result import EngineAnswer
from quire.core.config import LOAD_STALL_TIMEOUT_S, EncoderConfig, EngineConfig
from quire.core.encoding import EncodeResult
from quire.core.errors import (
    ConfigError,
    EngineLost,
    ErrorRecord,
    ModelError,
    ProtocolMismatch,
    QuireError,
)
from quire.core.ids import EngineId, ModelId
from quire.core.interfaces import EncoderTransport, EngineTransport, ProgramClock
from quire.node.supervision.engine_loading import OnProgress
from quire.node.supervision.health import TRANSITIONS, EngineHealth, EngineReadiness, with_silence
from quire.node.supervision.loading_watch import LoadingWatch

logger = logging.getLogger(__name__)

TransportFactory = Callable[[EngineConfig, OnProgress, EngineId], EngineTransport]

Config = TypeVar("Config", EngineConfig, EncoderConfig)

_HOPELESS = (ModelError, ConfigError, ProtocolMismatch)
"""Errors that another start would end in again."""


@dataclass(frozen=True, slots=True)
class RestartLimits:
    """``max_losses`` within ``window_s`` is a crash loop; so are ``max_losses`` starts in a row
    that do not make the engine ready, however long each takes. The pause before a restart doubles
    from ``first_pause_s`` to ``max_pause_s`` as losses in the window add up. An engine that loads,
    and makes no progress for ``stalled_s``, is lost; the pause after that doubles from
    ``stall_pause_s`` with each such loss in a row, as a disk or network may take minutes to come
    back."""

    max_losses: int = 5
    window_s: float = 60.0
    first_pause_s: float = 0.1
    max_pause_s: float = 5.0
    stalled_s: float = LOAD_STALL_TIMEOUT_S
    stall_pause_s: float = 10.0


class LoadStalled(EngineLost):
    """An engine that loaded has made no progress for too long, and was ended."""


class EngineOwner(Protocol):
    """Receives the changes and answers of an engine: the control thread."""

    def engine_up(
        self, engine: EngineId, model: ModelId, info: Any, send: Callable[[Any], None]
    ) -> None:
        """The engine is ready. Raises ``ConfigError`` for one that cannot be served."""
        ...

    def engine_answered(self, engine: EngineId, answer: EngineAnswer | EncodeResult) -> None:
        """The engine has answered. Raises ``EngineFault`` for an answer without a message; the
        engine is then started again."""
        ...

    def engine_down(self, engine: EngineId, error: ErrorRecord) -> None:
        """The engine is lost: messages in flight are not answered any more."""
        ...

    def engine_given_up(self, engine: EngineId, model: ModelId, error: ErrorRecord) -> None:
        """The engine will not come back."""
        ...


class EngineSupervisor(Generic[Config]):
    """Keeps one engine running. ``health`` may be read from any thread; all else belongs to the
    loop of ``start``.

    All callbacks run there. ``prepare()`` loads what the model needs besides an engine, while that
    starts; the owner is notified when both are there. ``on_ready(info)`` is called after each such
    notice, ``on_progress(stage, fraction)`` while the engine loads, ``on_change()`` after a change
    of state.
    """

    def __init__(
        self,
        engine: EngineId,
        config: Config,
        factory: Callable[[Config, OnProgress, EngineId], EngineTransport | EncoderTransport],
        control: EngineOwner,
        *,
        clock: ProgramClock,
        prepare: Callable[[], Awaitable[None]],
        on_ready: Callable[[Any], None],
        on_change: Callable[[], None],
        on_progress: OnProgress | None = None,
        limits: RestartLimits | None = None,
    ) -> None:
        self.engine = engine
        self._config: Config = config
        self._factory: Callable[[Config, OnProgress, EngineId], EngineTransport | EncoderTransport]
        self._factory = factory
        self._control = control
        self._clock = clock
        self._prepare = prepare
        self._on_ready = on_ready
        self._on_change = on_change
        self._listener = on_progress
        self._limits = limits or RestartLimits()
        self._losses: deque[float] = deque()
        self._failed_starts: list[QuireError] = []
        """How the last starts ended, without one among them that made the engine ready."""
        self._health = EngineHealth(EngineReadiness.LOADING, "starting")
        self._info: Any = None
        self._settled = asyncio.Event()
        self._error: QuireError | None = None
        self._task: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[Any] | None = None
        self._loading: LoadingWatch | None = None
        self.transport: EngineTransport | EncoderTransport | None = None

    @property
    def health(self) -> EngineHealth:
        transport = self.transport
        return with_silence(self._health, 0.0 if transport is None else transport.silent_s())

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"supervise {self.engine}")

    async def wait_ready(self) -> Any:
        """Wait until the engine is ready for the first time; return its description.

        Raises:
            QuireError: the engine was given up, or stopped, before it was ever ready.
        """
        await self._settled.wait()
        if self._info is None:
            raise self._error or EngineLost(f"engine {self.engine} was stopped while loading")
        return self._info

    async def stop(self) -> None:
        """End the engine. Idempotent."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._starting is not None:
            await asyncio.wait({self._starting})  # cancelled, it may still end its process
        if self.transport is not None:
            await self.transport.close()  # it may have been cancelled while it closed
        if self._health.state is not EngineReadiness.STOPPED:
            self._move(EngineReadiness.STOPPED, "stopped")
        self._settled.set()

    async def _run(self) -> None:
        try:
            while True:
                error = await self._live()
                if not self._may_restart(error):
                    return
                await self._clock.sleep(self._pause_s())
        except Exception as exc:  # a bug of the transport: say so instead of going quiet
            logger.exception("supervising engine %s failed", self.engine)
            self._give_up(EngineLost(f"supervising engine {self.engine} failed: {exc!r}"))

    async def _live(self) -> QuireError:
        """Run the engine once, from start to loss; return why it ended."""
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_answer(answer: EngineAnswer | EncodeResult) -> None:
            if lost.done():
                return
            try:
                self._control.engine_answered(self.engine, answer)
            except QuireError as exc:  # an answer to no message
                lost.set_result(exc.message)

        def on_lost(reason: str) -> None:
            if not lost.done():
                lost.set_result(reason)

        transport = self.transport = self._factory(
            self._config if self._info is None else self._config.again(),
            self._on_progress,
            self.engine,
        )
        try:
            info = await self._start_engine(transport, on_answer, on_lost)
            self._info = info
            self._failed_starts.clear()
            # the owner first: a client that sees the model or the state may use the engine at once
            self._control.engine_up(self.engine, self._config.name, info, transport.send)
            self._on_ready(info)
            if info.lacks:
                logger.error("engine %s is up %s", self.engine, info.lacks)
            self._move(EngineReadiness.READY, info.lacks)
            self._settled.set()
            kind = "encoder" if isinstance(self._config, EncoderConfig) else "engine"
            error: QuireError = EngineLost(f"{kind} {self.engine} is lost: {await lost}")
            # first, so that nobody who is notified of the loss still sees the engine as ready
            self._move(EngineReadiness.RESTARTING, error.message)
            self._control.engine_down(self.engine, error.record())
        except QuireError as exc:
            self._failed_starts.append(exc)
            error = exc
        finally:
            await transport.close()
        return error

    async def _start_engine(
        self,
        transport: EngineTransport | EncoderTransport,
        on_answer: Callable[[EngineAnswer | EncodeResult], None],
        on_lost: Callable[[str], None],
    ) -> Any:
        """Start the engine and run ``prepare`` side by side; raise the error of either, or
        ``EngineLost`` for an engine that makes no progress."""
        self._loading = LoadingWatch(self._clock, self._limits.stalled_s)
        starting: asyncio.Task[Any] = asyncio.create_task(transport.start(on_answer, on_lost))
        starting.add_done_callback(_seen)
        self._starting = starting
        stalling = asyncio.create_task(self._loading.stalled())
        try:
            await self._prepare()
            await asyncio.wait({starting, stalling}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                raise LoadStalled(self._stall(await stalling))
            return await starting
        finally:
            starting.cancel()
            stalling.cancel()
            # a gather that ``stop`` cancels would cancel it again
            await asyncio.wait({starting, stalling})

    def _stall(self, at: str) -> str:
        return (
            f"{self.engine} has made no progress in loading for {self._limits.stalled_s:g} s "
            f"({at}): look at the files of {self._config.source} and the disk or network that they "
            "are on; what only takes longer needs a larger --load-stall-timeout"
        )

    def _may_restart(self, error: QuireError) -> bool:
        if isinstance(error, _HOPELESS):
            self._give_up(error)
            return False
        now_s = self._clock.now_s()
        self._losses.append(now_s)
        while now_s - self._losses[0] > self._limits.window_s:
            self._losses.popleft()
        limits, num_failed = self._limits, len(self._failed_starts)
        often = None
        if len(self._losses) >= limits.max_losses:
            often = f"{len(self._losses)} times within {limits.window_s:g} s"
        elif num_failed >= limits.max_losses:
            often = f"{num_failed} times in a row while it loaded"
        if often is not None:
            self._give_up(
                EngineLost(
                    f"engine {self.engine} was lost {often} and is not started again; start the "
                    f"node again when the cause is removed; the last time: {error.message}"
                )
            )
            return False
        detail = error.message
        if num_failed:
            detail += (
                f" (failed start {num_failed} of at most {limits.max_losses} in a row; the next "
                f"one follows after {self._pause_s():g} s)"
            )
        logger.warning("engine %s is started again: %s", self.engine, detail)
        self._move(EngineReadiness.RESTARTING, detail, restarts=self._health.restarts + 1)
        return True

    def _pause_s(self) -> float:
        num_stalled = 0
        for error in reversed(self._failed_starts):
            if not isinstance(error, LoadStalled):
                break
            num_stalled += 1
        if num_stalled:
            return self._limits.stall_pause_s * 2.0 ** (num_stalled - 1)
        doubled = self._limits.first_pause_s * 2.0 ** (len(self._losses) - 1)
        return min(doubled, self._limits.max_pause_s)

    def _give_up(self, error: QuireError) -> None:
        logger.error("engine %s is given up: %s", self.engine, error.message)
        self._error = error
        self._move(EngineReadiness.FAILED, error.message)
        self._control.engine_given_up(self.engine, self._config.name, error.record())
        self._settled.set()

    def _on_progress(self, stage: str, fraction: float) -> None:
        if self._loading is not None:
            self._loading.moved(stage, fraction)
        health = self._health
        # after a loss the reason of the loss says more than the stage
        detail = stage if health.state is EngineReadiness.LOADING else health.detail
        self._health = EngineHealth(health.state, detail, health.restarts, fraction)
        if self._listener is not None:
            self._listener(stage, fraction)

    def _move(self, state: EngineReadiness, detail: str = "", restarts: int | None = None) -> None:
        health = self._health
        assert state in TRANSITIONS[health.state], f"{health.state} -> {state}"
        self._health = EngineHealth(
            state,
            detail,
            health.restarts if restarts is None else restarts,
            1.0 if state is EngineReadiness.READY else 0.0,
        )
        self._on_change()


def _seen(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of ``task``: the task that waits for it raises it, or it is not needed."""
    if not task.cancelled():
        task.exception()
