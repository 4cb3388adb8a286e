from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_checkpoints import MODELS, load_reference, make_checkpoint
from engine_driver import Driver
from transformers import PreTrainedModel
from transformers.utils import logging

from quire.core.config import EngineConfig
from quire.core.ids import ModelId
from quire.engine.cpu.library import kernel_report
from quire.engine.engine import Engine

logging.disable_progress_bar()

MakeDriver = Callable[..., Driver]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directory of a recipe of ``engine_checkpoints``, made at first use."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            make_checkpoint(name, made[name])
        return made[name]

    return get


@pytest.fixture(scope="session")
def reference(checkpoint: Callable[[str], Path]) -> Callable[[str], PreTrainedModel]:
    """The recipe's model in transformers."""
    loaded: dict[str, PreTrainedModel] = {}

    def get(name: str) -> PreTrainedModel:
        if name not in loaded:
            loaded[name] = load_reference(name, checkpoint(name))
        return loaded[name]

    return get


@pytest.fixture(params=["torch", "cpu"])
def backend(request: pytest.FixtureRequest) -> str:
    """Every backend that runs on this machine's processor."""
    name: str = request.param
    if name == "cpu" and kernel_report().chosen is None:
        pytest.skip(kernel_report().fallback_reason())
    return name


@pytest.fixture
def make_driver(checkpoint: Callable[[str], Path]) -> MakeDriver:
    """A driver of a fresh engine in float32 reference mode."""

    def make(name: str = "llama", **changes: object) -> Driver:
        settings: dict[str, object] = {
            "dtype": "float32",
            "page_size": 4,
            "num_blocks": 96,
            "host_cache_bytes": 1 << 20,
            "num_embeds": 256,
            "num_token_slots": 32,
            "max_sequences": 16,
            "max_batch_tokens": 128,
            "num_threads": 1,
            **MODELS[name].engine,
            **changes,
        }
        return Driver(
            Engine(EngineConfig(source=str(checkpoint(name)), name=ModelId(name), **settings))
        )

    return make
