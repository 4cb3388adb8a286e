"""An engine or encoder on a worker thread of this process: for embedding, notebooks and tests.

Owns the thread and the engine on it. A crash of native code takes the whole process with it; a node
that must survive that uses ``zeromq``.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from quire.core.errors import EngineLost, QuireError
from quire.node.loops import call_on

logger = logging.getLogger(__name__)

_STOP = object()
_LOOK = object()
"""Wakes the worker thread: the engine has progress of a transfer to report."""


class BatchExecutor(Protocol):
    """``EngineCore``, or an encoder with the same methods."""

    @property
    def info(self) -> Any: ...

    def execute(self, batch: Any) -> Any: ...

    def transfer(self) -> Any: ...

    def wake_by(self, ring: Callable[[], None]) -> None: ...

    def close(self) -> None: ...


class InProcessTransport:
    """An engine on a worker thread. ``load`` builds it; this and all methods of the engine run on
    that thread."""

    def __init__(self, name: str, load: Callable[[], BatchExecutor]) -> None:
        self._name = name
        self._load = load
        self._batches: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"quire-engine-{name}", daemon=True)
        self._closed = False

    async def start(self, on_answer: Callable[[Any], None], on_lost: Callable[[str], None]) -> Any:
        """Load the engine.

        Raises:
            QuireError: it cannot be loaded.
        """
        self._loop = asyncio.get_running_loop()
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._ready: asyncio.Future[Any] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._thread.start()
        return await asyncio.shield(self._ready)

    def send(self, batch: Any) -> None:
        self._batches.put(batch)

    def silent_s(self) -> float:
        """Always 0: the engine lives in the node's own process."""
        return 0.0

    async def close(self) -> None:
        """Return when the running batch is done and the engine has released its memory."""
        self._closed = True
        self._batches.put(_STOP)
        if self._thread.ident is not None:
            await self._ended.wait()
            self._thread.join()

    def _work(self) -> None:
        try:
            engine = self._load()
        except Exception as exc:  # becomes start()'s own error
            call_on(self._loop, self._load_failed, exc)
        else:
            try:
                engine.wake_by(lambda: self._batches.put(_LOOK))
                call_on(self._loop, self._loaded, engine.info)
                self._execute_all(engine)
            finally:
                engine.close()
        finally:
            call_on(self._loop, self._ended.set)

    def _execute_all(self, engine: BatchExecutor) -> None:
        while (batch := self._batches.get()) is not _STOP:
            try:
                if batch is not _LOOK:
                    call_on(self._loop, self._deliver, engine.execute(batch))
                self._transfer(engine)
            except Exception as exc:  # after any exception the engine's memory is in doubt
                logger.exception("engine %s failed", self._name)
                call_on(self._loop, self._lost, f"{type(exc).__name__}: {exc}")
                return

    def _transfer(self, engine: BatchExecutor) -> None:
        """Continue transfers until the next message arrives; at least one step after each
        message."""
        while (ended := engine.transfer()) is not None:
            call_on(self._loop, self._deliver, ended)
            if not self._batches.empty():
                return

    def _loaded(self, info: Any) -> None:
        if not self._ready.done():
            self._ready.set_result(info)

    def _load_failed(self, exc: Exception) -> None:
        if self._closed or self._ready.done():
            return
        if not isinstance(exc, QuireError):
            logger.error("engine %s cannot be loaded", self._name, exc_info=exc)
            exc = EngineLost(f"engine {self._name} cannot be loaded: {type(exc).__name__}: {exc}")
        self._ready.set_exception(exc)

    def _deliver(self, answer: Any) -> None:
        if not self._closed:
            self._on_answer(answer)

    def _lost(self, reason: str) -> None:
        if not self._closed:
            self._on_lost(reason)
