"""All encoders of the node, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from quire.core.config import EncoderConfig
from quire.core.encoding import EncoderKind
from quire.core.errors import EngineLost, InvalidArgument, ModelNotFound
from quire.core.ids import EngineId, ModelId
from quire.core.interfaces import ProgramClock
from quire.node.control.control_thread import ControlThread
from quire.node.encoders.asking import EncoderRequests
from quire.node.encoders.processes import EncoderProcesses
from quire.node.encoders.service import EncoderService
from quire.node.encoders.shared import shared_processes
from quire.node.encoders.transport import EncoderTransports
from quire.node.supervision.engine_loading import OnProgress
from quire.node.supervision.health import EngineHealth
from quire.node.supervision.supervisor import RestartLimits


class EncoderFleet:
    """``on_change`` is called after each change of ``health``."""

    def __init__(
        self,
        configs: Sequence[EncoderConfig],
        transports: EncoderTransports,
        control: ControlThread,
        *,
        clock: ProgramClock,
        on_change: Callable[[], None],
        on_progress: OnProgress,
        limits: RestartLimits | None = None,
    ) -> None:
        self.requests = EncoderRequests(control)
        self._processes: list[EncoderProcesses] = []
        self._services: dict[ModelId, EncoderService] = {}
        for shared in shared_processes(configs):
            processes = EncoderProcesses(
                shared.config,
                transports,
                control,
                clock=clock,
                on_change=on_change,
                on_progress=on_progress,
                limits=limits,
            )
            self._processes.append(processes)
            for name, is_late in shared.names.items():
                self._services[name] = EncoderService(
                    name, processes, self.requests, is_late=is_late
                )

    def all(self) -> list[EncoderService]:
        return list(self._services.values())

    def health(self) -> Mapping[EngineId, EngineHealth]:
        return {engine: health for one in self._processes for engine, health in one.health.items()}

    def find(self, name: str | None, kind: EncoderKind) -> EncoderService:
        """The encoder called ``name``; for ``None`` the first of its kind.

        Raises:
            ModelNotFound: there is none.
            EngineLost: it is not loaded yet, or given up.
            InvalidArgument: the one of that name is of another kind.
        """
        if name is not None:
            service = self._services.get(ModelId(name))
            if service is None:
                raise ModelNotFound(self._missing(f"no encoder {name[:100]!r}"), param="model")
            if service.info.kind != kind:
                raise InvalidArgument(
                    f"{name!r} is a model of kind {service.info.kind}, and what was asked needs "
                    f"one of kind {kind}: name another, or none",
                    param="model",
                )
            return service
        loading: EngineLost | None = None
        for service in self._services.values():
            try:
                if service.info.kind == kind:
                    return service
            except EngineLost as exc:
                loading = exc
        raise loading or ModelNotFound(self._missing(f"no model of kind {kind}"))

    def _missing(self, what: str) -> str:
        served = ", ".join(self._services) or "none"
        return (
            f"{what} is served here; encoders: {served}. Load one with --encoder [NAME=]SOURCE, a "
            "directory or hub id"
        )

    async def start(self) -> None:
        self.requests.start()
        for processes in self._processes:
            await processes.start()

    async def wait_ready(self) -> None:
        """Wait until all encoders are ready; raise the first error that prevents it."""
        await asyncio.gather(*(one.wait_ready() for one in self._processes))

    async def wait_idle(self) -> None:
        await self.requests.wait_idle()

    async def stop(self) -> None:
        await asyncio.gather(*(one.stop() for one in self._processes))
