"""Keeps the processes of one encoder running, and holds the rules by which it reads texts.

Lives on the edge's loop; its supervisors run on the control thread. Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from quire.core.config import EncoderConfig
from quire.core.encoding import EncoderInfo
from quire.core.errors import EngineLost
from quire.core.ids import EngineId
from quire.core.interfaces import ProgramClock
from quire.engine.encoders.text import EncoderTexts
from quire.node.control.control_thread import ControlThread
from quire.node.encoders.owner import EncoderOwner
from quire.node.encoders.transport import EncoderTransports
from quire.node.engines.engines import engine_id
from quire.node.supervision.engine_loading import OnProgress
from quire.node.supervision.health import EngineHealth, EngineReadiness
from quire.node.supervision.supervisor import EngineSupervisor, RestartLimits

_GONE = (EngineReadiness.FAILED, EngineReadiness.STOPPED)


class EncoderProcesses:
    """``on_change`` is called after each change of ``health``, on the control thread."""

    def __init__(
        self,
        config: EncoderConfig,
        transports: EncoderTransports,
        control: ControlThread,
        *,
        clock: ProgramClock,
        on_change: Callable[[], None],
        on_progress: OnProgress,
        limits: RestartLimits | None = None,
    ) -> None:
        self.name = config.name
        self._config = config
        self._transports = transports
        self._control = control
        self._info: EncoderInfo | None = None
        self._texts: EncoderTexts | None = None
        self._reading = asyncio.Lock()
        self._supervisors = [
            EngineSupervisor(
                engine_id(config.name, index),
                config,
                lambda config, on_progress, engine: transports.make(config, on_progress),
                EncoderOwner(control),
                clock=clock,
                prepare=self._prepare,
                on_ready=self._on_ready,
                on_change=on_change,
                on_progress=partial(_named, on_progress, config.name),
                limits=limits,
            )
            for index in range(config.instances)
        ]

    # -- what is there -----------------------------------------------------------------------------

    @property
    def health(self) -> Mapping[EngineId, EngineHealth]:
        """The health of each instance."""
        return {supervisor.engine: supervisor.health for supervisor in self._supervisors}

    @property
    def info(self) -> EncoderInfo:
        """The encoder's properties. Raises ``EngineLost`` if it is not loaded yet or given up."""
        health = list(self.health.values())
        if all(one.state in _GONE for one in health):
            raise EngineLost(f"encoder {self.name} cannot be served: {health[0].detail}")
        if self._info is None:
            raise EngineLost(f"encoder {self.name} is still being loaded: try again in a moment")
        return self._info

    @property
    def texts(self) -> EncoderTexts:
        """The rules by which texts become sequences of the model. Raises as ``info``."""
        assert self.info is not None
        assert self._texts is not None, "what is loaded has its texts"
        return self._texts

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        for supervisor in self._supervisors:
            await asyncio.wrap_future(self._control.submit(supervisor.start()))

    async def wait_ready(self) -> None:
        """Wait until all instances are ready.

        Raises:
            QuireError: an instance was given up or stopped before it was ready.
        """
        ready = [self._control.submit(one.wait_ready()) for one in self._supervisors]
        await asyncio.gather(*map(asyncio.wrap_future, ready))

    async def stop(self) -> None:
        """End all instances. Idempotent."""
        stopped = [self._control.submit(one.stop()) for one in self._supervisors]
        await asyncio.gather(*map(asyncio.wrap_future, stopped))

    async def _prepare(self) -> None:
        """Load the rules for texts, on the control thread, while an instance loads."""
        async with self._reading:
            if self._texts is None:
                read = self._transports.read_texts
                self._texts = await asyncio.to_thread(read, self._config.source)

    def _on_ready(self, info: EncoderInfo) -> None:
        """Runs on the control thread."""
        self._info = info


def _named(on_progress: OnProgress, encoder: str, stage: str, fraction: float) -> None:
    on_progress(f"{encoder}: {stage}", fraction)
