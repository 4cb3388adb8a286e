"""Loads a model directory: everything is checked before memory is allocated for weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.engine.adapters.bank import AdapterBank, attach_adapters, module_shapes
from quire.engine.adapters.peft_directory import AdapterWeights, ModuleShape, load_adapters
from quire.engine.checkpoint.config_accounting import account
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.checkpoint.model_directory import ModelDirectory
from quire.engine.cpu.library import kernel_report
from quire.engine.device import choose_device, choose_dtype, dtype_name
from quire.engine.layers.parameters import Parameters
from quire.engine.models.decoder import CausalLM
from quire.engine.models.decoder_config import DecoderConfig
from quire.engine.models.registry import ModelFamily, family_of
from quire.engine.parallel.collectives import Collectives
from quire.engine.parallel.shard import WHOLE, local_config, local_destinations
from quire.engine.parallel.sharded_adapters import local_adapter
from quire.engine.parallel.sharded_model import ShardedDecoder
from quire.engine.quantization.registry import scheme_of
from quire.engine.quantization.scheme import Scheme
from quire.engine.vision.config import VisionConfig, read_vision
from quire.engine.vision.image_processor import ImageProcessorConfig, read_image_processor
from quire.engine.vision.tower import VisionTower
from quire.engine.weights import Checkpoint, Progress, weights_digest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its weights loaded, and its identity. ``config`` is that of this rank's part,
    ``num_kv_heads`` counts those of all ranks. ``vision``: the tower and image preprocessing of a
    model that takes images."""

    model: CausalLM
    config: DecoderConfig
    family: ModelFamily
    device: torch.device
    dtype: torch.dtype
    content: str
    num_parameters: int
    max_model_len: int
    num_kv_heads: int
    adapters: AdapterBank | None = None
    vision: tuple[VisionTower, ImageProcessorConfig] | None = None


def load_model(
    config: EngineConfig,
    directory: ModelDirectory,
    progress: Progress | None = None,
    ranks: Collectives | None = None,
) -> LoadedModel:
    """Check the whole directory, then allocate and load the weights.

    ``ranks``: the group of tensor-parallel ranks; loads this rank's part.
    """
    shard = WHOLE if ranks is None else ranks.shard
    whole = _describe(config, directory, may_see=shard.size == 1)
    family, shape, blank = whole.family, whole.shape, whole.blank
    device = choose_device(config.device)
    with Checkpoint(directory, whole.scheme) as checkpoint:
        whole.check(checkpoint)
        stored = checkpoint.dtype_of(shape.name("embed_tokens.weight"))
        num_parameters = blank.num_elements
        dtype = choose_dtype(config.dtype, device, stored, num_parameters, _wants_kernel(config))
        parameters = Parameters(device, dtype)
        local = local_config(shape, shard)
        model = family.build(local, parameters)
        vision = whole.vision(parameters, checkpoint)
        destinations = local_destinations(blank.destinations, parameters.destinations, shape, shard)
        checkpoint.load(destinations, progress)
        content = weights_digest(checkpoint.files, whole.raw, _kv_content(config, dtype, shape))
    mine = module_shapes(model)
    adapters = [local_adapter(one, whole.modules, mine, shape, shard) for one in whole.adapters]
    bank = attach_adapters(adapters, model, device, dtype)
    max_model_len, num_kv_heads = whole.max_model_len, shape.attention.num_kv_heads
    if ranks is not None:
        model = ShardedDecoder(model, shape, ranks)
        shape = replace(local, vocab_size=shape.vocab_size)
    return LoadedModel(
        model,
        shape,
        family,
        device,
        dtype,
        content,
        num_parameters,
        max_model_len,
        num_kv_heads,
        bank,
        vision,
    )


@dataclass(frozen=True, slots=True)
class _Description:
    """What a directory says of its whole model, for which nothing is allocated yet. ``blank``: its
    parameters without memory; ``seeing``: the configuration of its vision tower."""

    raw: dict[str, Any]
    family: ModelFamily
    shape: DecoderConfig
    max_model_len: int
    scheme: Scheme | None
    blank: Parameters
    modules: Mapping[str, ModuleShape]
    adapters: list[AdapterWeights]
    seeing: tuple[VisionConfig, ImageProcessorConfig] | None

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that the files have what the model needs, and nothing else."""
        self.vision(self.blank, checkpoint)
        checkpoint.check(self.blank.destinations, self.shape.ignores)

    def vision(
        self, parameters: Parameters, checkpoint: Checkpoint
    ) -> tuple[VisionTower, ImageProcessorConfig] | None:
        """Build the tower in ``parameters``, under either of the two names that checkpoints use."""
        if self.seeing is None:
            return None
        is_nested = checkpoint.has_any("vision_tower.vision_model.")
        prefix = "vision_tower.vision_model" if is_nested else "vision_tower"
        return VisionTower(self.seeing[0], parameters, prefix), self.seeing[1]


def _describe(config: EngineConfig, directory: ModelDirectory, *, may_see: bool) -> _Description:
    """Read the configuration files. ``may_see``: read that of a vision tower, too."""
    raw = directory.read_config()
    where = str(directory.path / "config.json")
    family = family_of(raw, where)
    reader = ConfigReader(raw, where)
    shape = family.read(reader)
    max_model_len = _max_model_len(config, shape)
    shape = shape.for_length(max_model_len)
    blank = Parameters(torch.device("meta"), torch.float32)
    modules = module_shapes(family.build(shape, blank))
    adapters = load_adapters(config.adapters, modules)
    seeing = _read_vision(reader, directory, family, shape) if may_see else None
    scheme = scheme_of(reader)
    for warning in account(reader, family.keys):
        logger.warning("%s", warning)
    return _Description(raw, family, shape, max_model_len, scheme, blank, modules, adapters, seeing)


def _read_vision(
    reader: ConfigReader, directory: ModelDirectory, family: ModelFamily, shape: DecoderConfig
) -> tuple[VisionConfig, ImageProcessorConfig] | None:
    """The configuration of a vision tower; None for a model without one."""
    if not family.sees_images:
        return None
    vision = read_vision(reader, output_size=shape.hidden_size, vocab_size=shape.vocab_size)
    name = "preprocessor_config.json"
    processor = directory.read_json_if_present(name)
    if not processor:  # newer exports keep it inside the processor's file
        name = "processor_config.json"
        processor = directory.read_json_if_present(name).get("image_processor") or {}
    return vision, read_image_processor(ConfigReader(processor, str(directory.path / name)), vision)


def _wants_kernel(config: EngineConfig) -> bool:
    """Whether the CPU kernel will run the model, provided that it supports all of it."""
    may = config.backend in ("auto", "cpu") and config.tensor_parallel == 1
    return may and kernel_report().chosen is not None


def _kv_content(
    config: EngineConfig, dtype: torch.dtype, shape: DecoderConfig
) -> dict[str, str | int]:
    """The values on which K and V depend besides the weights. ``shape``: of the whole model, at the
    served length."""
    return {
        "dtype": dtype_name(dtype),
        "weights": config.weights,
        "rotation": repr(shape.ropes),
        "num_layers": shape.num_layers,
        "num_kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
    }


def _max_model_len(config: EngineConfig, shape: DecoderConfig) -> int:
    if config.max_model_len is None:
        return shape.default_positions or shape.max_positions
    if not 1 <= config.max_model_len <= shape.max_positions:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}; this model has positions for 1 to "
            f"{shape.max_positions} tokens"
        )
    return config.max_model_len
