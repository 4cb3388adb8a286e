"""Makes models with given shapes and random weights on the device, in Quire's runner."""

from __future__ import annotations

from typing import Any

import torch

from quire.core.config import EngineConfig
from quire.core.ids import ModelId
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.cuda.backend import make_runner
from quire.engine.cuda.graphs import CudaGraphRecorder, DirectRecorder
from quire.engine.cuda.model_forms import Forms, adapt
from quire.engine.cuda.runner import CudaRunner
from quire.engine.layers.parameters import Parameters
from quire.engine.loading import LoadedModel
from quire.engine.models.decoder import Decoder
from quire.engine.models.registry import family_of

PAGE_SIZE = 16
_SPREAD = 0.02


def random_model(raw: dict[str, Any], max_model_len: int, device: torch.device) -> LoadedModel:
    """Make the model of a ``config.json``: norm weights are one, all others normally distributed.
    It is in bfloat16 on a GPU."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    family = family_of(raw, "shape")
    config = family.read(ConfigReader(raw, "shape")).for_length(max_model_len)
    parameters = Parameters(device, dtype)
    model = family.build(config, parameters)
    torch.manual_seed(0)
    for name, destination in parameters.destinations.items():
        if "norm" in name:
            destination.target.fill_(1.0)
        else:
            destination.target.normal_(0.0, _SPREAD)
    return LoadedModel(
        model=model,
        config=config,
        family=family,
        device=device,
        dtype=dtype,
        content="random",
        num_parameters=parameters.num_elements,
        max_model_len=max_model_len,
        num_kv_heads=config.attention.num_kv_heads,
    )


def runner_of(
    loaded: LoadedModel, batches: list[int], max_tokens: int, num_blocks: int
) -> CudaRunner:
    """Make a runner with decode steps recorded for these batches, its cache filled with noise."""
    config = EngineConfig(
        source="random",
        name=ModelId("random"),
        page_size=PAGE_SIZE,
        num_blocks=num_blocks,
        host_cache_bytes=0,
        num_embeds=1,
        max_sequences=max(batches),
        max_batch_tokens=max_tokens,
        max_model_len=loaded.max_model_len,
    )
    on_gpu = loaded.device.type == "cuda"
    recorder = CudaGraphRecorder(loaded.device) if on_gpu else DirectRecorder()
    assert isinstance(loaded.model, Decoder)
    adapt(loaded.model, Forms())
    runner = make_runner(config, loaded, recorder, batches)
    for cache in runner.pool.layers:
        cache.keys_SKD.normal_()
        cache.values_SKD.normal_()
    return runner
