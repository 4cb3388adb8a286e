"""A node's life: the order in which its parts start, the draining of its work, and the end.

Belongs to the loop that called ``start``. Knows nothing of the requests in between.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path

from quire.core.config import NodeConfig
from quire.core.scratch import remove_left_behind
from quire.node.control.recorder import EventRecorder
from quire.node.drain import Drain
from quire.node.notices import NodeNotices
from quire.node.parts import NodeParts
from quire.node.supervision.engine_loading import OnProgress

logger = logging.getLogger(__name__)


class NodeLife:
    """Starts a node's parts once, and ends them for good."""

    def __init__(self, config: NodeConfig, parts: NodeParts, notices: NodeNotices) -> None:
        self._config = config
        self._parts = parts
        self._notices = notices
        self._recorder: EventRecorder | None = None
        self._started_s = parts.clock.now_s()
        self._running = False
        self._drain = Drain()
        self._drains = False
        """A caller of ``stop`` has given the work time to finish."""
        self._stopping: asyncio.Task[None] | None = None

    @property
    def uptime_s(self) -> float:
        return self._parts.clock.now_s() - self._started_s

    @property
    def is_over(self) -> bool:
        """Whether every part has ended."""
        return self._stopping is not None and self._stopping.done()

    @property
    def recording_failure(self) -> str | None:
        """Why the event log is no longer written; ``None``: it is, or none was asked for."""
        return None if self._recorder is None else self._recorder.failure

    async def start(self, progress: OnProgress | None, *, wait_ready: bool) -> None:
        """See ``Node.start``."""
        assert not self._running, "a node is started once"
        parts = self._parts
        self._notices.begin(progress)
        if self._config.record_path is not None:
            self._record(self._config.record_path)
        try:
            parts.services.start()
        except BaseException:
            self._end_record()
            raise
        self._running = True
        if parts.spans is not None:
            parts.spans.start()
        parts.control.start()
        parts.hosts.start()
        await parts.encoders.start()
        await asyncio.to_thread(remove_left_behind)
        try:
            await parts.services.index()
            await parts.fleet.start(wait_ready=wait_ready)
            if wait_ready:
                await parts.encoders.wait_ready()
        except BaseException:
            await self.stop()
            raise

    def _record(self, path: Path) -> None:
        self._recorder = EventRecorder(path, self._config)
        self._parts.observers.append(self._recorder)

    def _end_record(self) -> None:
        if self._recorder is not None:
            self._recorder.close()

    async def stop(self, drain_timeout_s: float = 0.0) -> None:
        """See ``Node.stop``."""
        self._parts.admission.close()
        if not self._running:
            return
        self._drains |= drain_timeout_s > 0
        self._drain.limit(drain_timeout_s)
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(), name="stop the node")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        """End every part, even if another one raises; the first error is raised afterwards."""
        parts = self._parts
        await self._drain.wait(self._wait_idle())
        num_calls, running = len(parts.sessions.calls()), parts.programs.running()
        if self._drains and (num_calls or running):
            cut = "the time to finish is over: %d calls and %d programs are cancelled"
            logger.warning(cut, num_calls, len(running))
        for handle in running:
            handle.terminate("the node is stopping")
        parts.sessions.close()
        async with AsyncExitStack() as ends:  # from the last line up
            if parts.spans is not None:
                ends.push_async_callback(asyncio.to_thread, parts.spans.close)
            ends.callback(self._end_record)
            ends.callback(parts.control.stop)
            ends.push_async_callback(parts.fleet.stop)
            ends.push_async_callback(parts.encoders.stop)
            ends.push_async_callback(asyncio.to_thread, parts.preparation.close)
            ends.push_async_callback(parts.services.close)
            ends.push_async_callback(parts.programs.close)
            ends.push_async_callback(asyncio.to_thread, parts.sandbox.close)
            ends.push_async_callback(parts.hosts.close)

    async def _wait_idle(self) -> None:
        await self._parts.sessions.wait_idle()
        await self._parts.programs.wait_idle()
        await self._parts.encoders.wait_idle()
