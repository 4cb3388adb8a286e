"""The CPU kernel as a backend: which models it runs, and how it takes them over."""

from __future__ import annotations

import logging

import torch

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.engine.cpu.library import load_kernel
from quire.engine.cpu.native_pool import NativeKVPool, padded_head_dim
from quire.engine.cpu.native_runner import NativeRunner
from quire.engine.cpu.packed_decoder import PackedDecoder
from quire.engine.cpu.packed_matrix import Ordering, WeightType
from quire.engine.cpu.team import Team
from quire.engine.device import choose_team_size
from quire.engine.embed_slots import EmbedSlots
from quire.engine.kv_cache.pool import BlockShape
from quire.engine.layers.key_turn import KeyTurn
from quire.engine.loading import LoadedModel
from quire.engine.models.decoder import Decoder

_log = logging.getLogger(__name__)

_WEIGHT_TYPES = {torch.float32: WeightType.F32, torch.bfloat16: WeightType.BF16}


class CpuBackend:
    """Implements ``quire.engine.backend.Backend`` for decoders on processors."""

    name = "cpu"
    serves_adapters = True

    def unsupported(self, config: EngineConfig, loaded: LoadedModel) -> str | None:
        if loaded.device.type != "cpu":
            return f"it runs on processors, and the device is {loaded.device}: choose device cpu"
        if config.tensor_parallel > 1:
            return "tensor parallelism: choose backend torch"
        if loaded.dtype not in _WEIGHT_TYPES:
            return "it computes in float32 and bfloat16: choose one of these as dtype"
        if config.weights not in ("auto", "int8"):
            return f"it has no products for weights {config.weights!r}: choose auto or int8"
        if not isinstance(loaded.model, Decoder):
            return f"the {loaded.family.name} family has a structure of its own: choose torch"
        try:
            load_kernel(config.kernel_isa)
        except ConfigError as exc:
            return str(exc)
        return None

    def make_runner(self, config: EngineConfig, loaded: LoadedModel) -> NativeRunner:
        assert isinstance(loaded.model, Decoder)
        library = load_kernel(config.kernel_isa)
        team = Team(
            library, choose_team_size(config.num_threads, loaded.num_parameters, config.replicas)
        )
        pool = _make_pool(config, loaded, team)
        model = PackedDecoder(
            loaded.model,
            team,
            pool,
            WeightType.INT8 if config.weights == "int8" else _WEIGHT_TYPES[loaded.dtype],
            Ordering.BATCH_INVARIANT if config.batch_invariant else Ordering.FASTEST,
            len(config.adapters),
        )
        embeds = EmbedSlots(
            config.num_embeds, loaded.config.hidden_size, loaded.device, torch.float32
        )
        # little work is left to PyTorch, and its idle threads would spin on the kernel's cores
        torch.set_num_threads(1)
        _log.info("CPU kernel %s on %d threads", library.isa, team.num_threads)
        return NativeRunner(model, pool, embeds, team)


def _make_pool(config: EngineConfig, loaded: LoadedModel, team: Team) -> NativeKVPool:
    shape = BlockShape(
        num_layers=loaded.config.num_layers,
        num_kv_heads=loaded.config.num_kv_heads,
        head_dim=padded_head_dim(loaded.config.head_dim),
        page_size=config.page_size,
        dtype=loaded.dtype,
    )
    num_blocks, num_host_blocks = shape.num_blocks(config), shape.num_host_blocks(config)
    try:
        return NativeKVPool(
            team,
            shape,
            loaded.config.head_dim,
            KeyTurn(loaded.config.ropes, loaded.config.rope_of_layer, loaded.config.head_dim),
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            num_scratch=config.max_batch_tokens,
            num_axes=1,
        )
    except (OSError, ValueError, OverflowError, MemoryError) as exc:
        raise shape.too_large(num_blocks, num_host_blocks, exc) from exc
