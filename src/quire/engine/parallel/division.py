"""Whether ranks can share a model, by its ``config.json`` alone: refused before they are started,
because each of them imports PyTorch, which takes seconds and hundreds of MiB."""

from __future__ import annotations

import torch

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.checkpoint.model_directory import ModelDirectory
from quire.engine.layers.parameters import Parameters
from quire.engine.models.decoder import Decoder
from quire.engine.models.registry import family_of
from quire.engine.parallel.shard import check_split
from quire.engine.torch_backend import TorchBackend


def check_division(config: EngineConfig, directory: ModelDirectory) -> None:
    """Check that the ranks can share the model.

    Raises:
        ConfigError: ``tensor_parallel`` ranks cannot share the model, or not on this backend.
        ModelError: the model's configuration is damaged, or of an unknown architecture.
    """
    size = config.tensor_parallel
    if config.backend not in ("auto", TorchBackend.name):
        raise ConfigError(
            f"backend {config.backend!r} does not split a model over {size} ranks: choose torch, "
            "or tensor_parallel 1"
        )
    raw, where = directory.read_config(), str(directory.path / "config.json")
    family = family_of(raw, where)
    shape = family.read(ConfigReader(raw, where))
    check_split(shape, size)
    decoder = family.build(shape, Parameters(torch.device("meta"), torch.float32))
    if not isinstance(decoder, Decoder):
        raise ConfigError(
            f"tensor_parallel is {size}, but a {type(decoder).__name__} cannot be split: choose 1"
        )
