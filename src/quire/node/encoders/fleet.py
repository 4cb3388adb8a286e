"""All encoders of the node, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from quire.core.config import EncoderConfig
from quire.core.encoding import EncoderKind
from quire.core.errors import EngineLost, InvalidArgument, ModelNotFound
from quire.core.ids import EngineId, ModelId
from quire.core.interfaces import Clock
from quire.node.control_thread import ControlThread
from quire.node.encoders.asking import EncoderRequests
from quire.node.encoders.service import EncoderService
from quire.node.encoders.transport import EncoderTransports
from quire.node.engine_loading import OnProgress
from quire.node.health import EngineHealth
from quire.node.supervisor import RestartLimits


class EncoderFleet:
    """``on_change`` is called after each change of ``health``."""

    def __init__(
        self,
        configs: Sequence[EncoderConfig],
        transports: EncoderTransports,
        control: ControlThread,
        *,
        clock: Clock,
        on_change: Callable[[], None],
        on_progress: OnProgress,
        limits: RestartLimits | None = None,
    ) -> None:
        self.requests = EncoderRequests(control)
        self._services = {
            config.name: EncoderService(
                config,
                transports,
                control,
                self.requests,
                clock=clock,
                on_change=on_change,
                on_progress=on_progress,
                limits=limits,
            )
            for config in configs
        }

    def all(self) -> list[EncoderService]:
        return list(self._services.values())

    def health(self) -> Mapping[EngineId, EngineHealth]:
        services = self._services.values()
        return {engine: health for one in services for engine, health in one.health.items()}

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
                raise ModelNotFound(self._missing(f"no encoder {name[:100]!r}"))
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
        for service in self._services.values():
            await service.start()

    async def wait_ready(self) -> None:
        """Raises ``QuireError``: the first error that keeps one from becoming ready."""
        await asyncio.gather(*(service.wait_ready() for service in self._services.values()))

    async def wait_idle(self) -> None:
        await self.requests.wait_idle()

    async def stop(self) -> None:
        await asyncio.gather(*(service.stop() for service in self._services.values()))
