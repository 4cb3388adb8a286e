"""Backends: ways to run a loaded model, and the choice among them.

A backend turns a ``LoadedModel`` into a ``ModelRunner``. ``quire.engine.torch_backend`` runs every
model on every device and defines the results; the others are faster where they apply. To add one,
implement ``Backend`` and add it to ``BACKENDS``.
"""

from __future__ import annotations

from typing import Protocol

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.engine.cpu.cpu_backend import CpuBackend
from quire.engine.cuda.backend import CudaBackend
from quire.engine.loading import LoadedModel
from quire.engine.model_runner import ModelRunner
from quire.engine.torch_backend import TorchBackend

NUM_AXES = 1
"""Position axes: 1 for text."""


class Backend(Protocol):
    """One way to run models. Stateless; the engine owns the runners that it makes.

    ``serves_adapters``: its runners compute with ``AttentionRows.adapters``.
    """

    serves_adapters: bool

    @property
    def name(self) -> str: ...

    def unsupported(self, config: EngineConfig, loaded: LoadedModel) -> str | None:
        """Why it cannot run this model on this machine, with the remedy; None if it can."""
        ...

    def make_runner(self, config: EngineConfig, loaded: LoadedModel) -> ModelRunner:
        """Allocate the cache and take over the weights.

        Raises:
            ConfigError: the cache does not fit.
        """
        ...


BACKENDS: tuple[Backend, ...] = (CudaBackend(), CpuBackend(), TorchBackend())
"""Fastest first."""


def choose_backend(config: EngineConfig, loaded: LoadedModel) -> Backend:
    """The backend that the configuration names, or with ``auto`` the first that can run the model.

    Raises:
        ConfigError: the named backend does not exist or cannot run this model here.
    """
    wanted = config.backend
    if wanted == "auto" and config.kernel_isa is not None:
        # a kernel that was asked for by name must not be skipped silently
        wanted = CpuBackend.name
    if wanted == "auto":
        return _first_that_can(config, loaded)
    for backend in BACKENDS:
        if backend.name == wanted:
            reason = _unsupported(backend, config, loaded)
            if reason is None:
                return backend
            raise ConfigError(f"backend {wanted!r} cannot run {config.name}: {reason}")
    names = ", ".join(backend.name for backend in BACKENDS)
    raise ConfigError(f"no backend is named {config.backend!r}; there are auto, {names}")


def _first_that_can(config: EngineConfig, loaded: LoadedModel) -> Backend:
    reasons = []
    for backend in BACKENDS:
        reason = _unsupported(backend, config, loaded)
        if reason is None:
            return backend
        reasons.append(f"{backend.name}: {reason}")
    raise ConfigError(f"no backend can run {config.name}: {'; '.join(reasons)}")


def _unsupported(backend: Backend, config: EngineConfig, loaded: LoadedModel) -> str | None:
    if loaded.adapters is not None and not backend.serves_adapters:
        return "it does not serve adapters: choose backend torch, or leave the adapters out"
    return backend.unsupported(config, loaded)
