"""Engines over the CUDA backend's runner: on a device, or with the interpreter in its place."""

from __future__ import annotations

import pytest
import torch
from triton_mode import DEVICE

from quire.core.config import EngineConfig
from quire.engine import backend
from quire.engine.cuda.backend import CudaBackend, adapt_weights, make_runner
from quire.engine.cuda.graphs import CudaGraphRecorder, DirectRecorder
from quire.engine.cuda.runner import CudaRunner
from quire.engine.loading import LoadedModel


class AnywhereBackend(CudaBackend):
    """``CudaBackend`` that takes any device and keeps its last runner."""

    runner: CudaRunner | None = None

    def unsupported(self, config: EngineConfig, loaded: LoadedModel) -> str | None:
        return None

    def make_runner(self, config: EngineConfig, loaded: LoadedModel) -> CudaRunner:
        on_device = loaded.device.type == "cuda"
        recorder = CudaGraphRecorder(loaded.device) if on_device else DirectRecorder()
        adapt_weights(config, loaded)
        self.runner = make_runner(config, loaded, recorder)
        return self.runner


@pytest.fixture
def cuda_backend(monkeypatch: pytest.MonkeyPatch) -> AnywhereBackend:
    """Engines made with ``backend="cuda"`` use it."""
    anywhere = AnywhereBackend()
    monkeypatch.setattr(backend, "BACKENDS", (anywhere, *backend.BACKENDS))
    return anywhere


SETTINGS = {"backend": "cuda", "device": DEVICE, "max_sequences": 4, "max_batch_tokens": 32}
REFERENCE = {**SETTINGS, "backend": "torch"}


def assert_near(actual: object, expected: object) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
