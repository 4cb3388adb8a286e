"""All engines of the node: their supervisors, and the models that they serve.

Called on the edge's loop; runs each step on the control thread. Must not know how an engine is
reached or what it executes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from quire.core.config import EngineConfig
from quire.core.engine_info import EngineInfo
from quire.core.errors import EngineLost
from quire.core.ids import EngineId, ModelId
from quire.core.interfaces import ProgramClock, ServedModel
from quire.core.traits import NODE_TRAITS
from quire.node.control.control_thread import ControlThread
from quire.node.models import ModelFiles, ModelTable
from quire.node.supervision.engine_loading import OnProgress
from quire.node.supervision.health import EngineHealth, EngineReadiness
from quire.node.supervision.supervisor import EngineSupervisor, RestartLimits, TransportFactory


@dataclass(frozen=True, slots=True)
class EngineBackend:
    """Sources of engines and of their models' files. ``read_files`` may block."""

    make_transport: TransportFactory
    read_files: Callable[[EngineConfig], ModelFiles]
    limits: RestartLimits | None = None


class EngineFleet:
    """All engines, each with its supervisor. ``on_progress(text, fraction)`` and ``on_change()``
    (of ``health``) are called on the control thread."""

    def __init__(
        self,
        configs: Sequence[EngineConfig],
        backend: EngineBackend,
        control: ControlThread,
        *,
        clock: ProgramClock,
        on_progress: OnProgress,
        on_change: Callable[[], None],
        node_traits: frozenset[str] = NODE_TRAITS,
    ) -> None:
        self.models = ModelTable(configs, node_traits)
        self._backend = backend
        self._control = control
        self._files: dict[ModelId, ModelFiles] = {}
        self._reading: defaultdict[ModelId, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._supervisors = [
            EngineSupervisor(
                engine_id(config.name, index),
                config,
                backend.make_transport,
                control,
                clock=clock,
                prepare=partial(self._read, config),
                on_ready=partial(self._on_ready, config),
                on_change=on_change,
                on_progress=partial(_named, on_progress, _label(config, index)),
                limits=backend.limits,
            )
            for config in configs
            for index in range(config.replicas)
        ]
        self._replicas = {
            config.name: [engine_id(config.name, index) for index in range(config.replicas)]
            for config in configs
        }

    def health(self) -> Mapping[EngineId, EngineHealth]:
        return {supervisor.engine: supervisor.health for supervisor in self._supervisors}

    def find_model(self, name: str | None) -> ServedModel:
        """The model called ``name``; the default one for ``None``.

        Raises:
            ModelNotFound: no model has that name.
            EngineLost: it is still loading, or all of its engines have been given up.
        """
        wanted = self.models.name_of(name)
        health = self.health()
        replicas = [health[engine] for engine in self._replicas[self.models.base_of(wanted)]]
        if all(one.state is EngineReadiness.FAILED for one in replicas):
            raise EngineLost(f"model {wanted} cannot be served: {replicas[0].detail}")
        return self.models.get(wanted)

    def check_any(self) -> None:
        """Do nothing if a model is loaded.

        Raises:
            ModelNotFound: none will be loaded.
            EngineLost: the default model is still loading, or given up.
        """
        if not self.models.models():
            self.find_model(None)

    async def start(self, *, wait_ready: bool) -> None:
        """Start all engines at once.

        Raises:
            QuireError: with ``wait_ready``, the first error of an engine that cannot become ready.
        """
        await asyncio.gather(
            *(
                asyncio.wrap_future(self._control.submit(supervisor.start()))
                for supervisor in self._supervisors
            )
        )
        if wait_ready:
            await asyncio.gather(
                *(
                    asyncio.wrap_future(self._control.submit(supervisor.wait_ready()))
                    for supervisor in self._supervisors
                )
            )

    async def stop(self) -> None:
        """End all engines. Idempotent."""
        await asyncio.gather(
            *(
                asyncio.wrap_future(self._control.submit(supervisor.stop()))
                for supervisor in self._supervisors
            )
        )

    async def _read(self, config: EngineConfig) -> None:
        """Read the model's files once for all replicas, on the control thread, while the engine
        loads: a tokenizer takes time too."""
        async with self._reading[config.name]:
            if config.name in self._files:
                return
            self._files[config.name] = await asyncio.to_thread(self._backend.read_files, config)

    def _on_ready(self, config: EngineConfig, info: EngineInfo) -> None:
        """Runs on the control thread, after control has added the engine."""
        self.models.put(config.name, info, self._files[config.name])


def engine_id(model: ModelId, index: int = 0) -> EngineId:
    """The id of engine ``index`` of ``model``."""
    return EngineId(f"{model}#{index}")


def _label(config: EngineConfig, index: int) -> str:
    return config.name if config.replicas == 1 else engine_id(config.name, index)


def _named(on_progress: OnProgress, engine: str, stage: str, fraction: float) -> None:
    on_progress(f"{engine}: {stage}", fraction)
