"""Loads the model of a tensor-parallel engine on rank 0, together with the other ranks."""

from __future__ import annotations

import torch

from quire.core.config import EngineConfig
from quire.core.errors import QuireError
from quire.engine.checkpoint.model_directory import ModelDirectory
from quire.engine.device import choose_num_threads
from quire.engine.loading import LoadedModel, load_model
from quire.engine.parallel.follower import loaded_answer
from quire.engine.parallel.group import RankGroup, local_engine_config
from quire.engine.parallel.leading_runner import LeadingRunner
from quire.engine.torch_backend import TorchBackend
from quire.engine.weights import Progress


def lead(
    config: EngineConfig,
    directory: ModelDirectory,
    progress: Progress | None,
    group: RankGroup,
) -> tuple[LoadedModel, LeadingRunner]:
    """Load the model on every rank.

    Raises:
        ConfigError: the ranks cannot share it (see ``check_division``).
        EngineFault: a rank has ended.
    """
    group.begin_load(config)
    local = local_engine_config(config, group.device)
    try:
        loaded = load_model(local, directory, progress, group.collectives)
        torch.set_num_threads(
            choose_num_threads(local.num_threads, loaded.num_parameters, local.replicas)
        )
        runner = TorchBackend().make_runner(local, loaded)
    except QuireError:
        group.hear_loads()  # the others failed in the same way; the group can load another model
        raise
    group.end_load(loaded_answer(loaded, runner))
    return loaded, LeadingRunner(runner, group, loaded.num_kv_heads)
