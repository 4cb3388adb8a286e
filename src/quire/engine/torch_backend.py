"""The PyTorch backend: runs any model on any device, and defines every result."""

from __future__ import annotations

from quire.core.config import EngineConfig
from quire.engine.attention.reference import TorchAttention
from quire.engine.embed_slots import EmbedSlots
from quire.engine.kv_cache.pool import BlockShape
from quire.engine.kv_cache.torch_pool import TorchKVPool
from quire.engine.layers.key_turn import KeyTurn
from quire.engine.loading import LoadedModel
from quire.engine.torch_runner import TorchRunner


class TorchBackend:
    """Implements ``quire.engine.backend.Backend``."""

    name = "torch"
    serves_adapters = True

    def unsupported(self, config: EngineConfig, loaded: LoadedModel) -> str | None:
        if config.weights != "auto":
            return f"it does not quantise weights to {config.weights}: choose weights auto"
        return None

    def make_runner(self, config: EngineConfig, loaded: LoadedModel) -> TorchRunner:
        pool = _make_pool(config, loaded)
        attention = TorchAttention(loaded.device, loaded.dtype, pool.null_slot)
        hidden_size = loaded.config.hidden_size
        embeds = EmbedSlots(config.num_embeds, hidden_size, loaded.device, loaded.dtype)
        return TorchRunner(loaded.model, pool, attention, embeds, loaded.device, loaded.adapters)


def _make_pool(config: EngineConfig, loaded: LoadedModel) -> TorchKVPool:
    shape = BlockShape(
        num_layers=loaded.config.num_layers,
        num_kv_heads=loaded.config.num_kv_heads,
        head_dim=loaded.config.head_dim,
        page_size=config.page_size,
        dtype=loaded.dtype,
    )
    turn = KeyTurn(loaded.config.ropes, loaded.config.rope_of_layer, loaded.config.head_dim)
    return TorchKVPool.allocate(shape, config, loaded.device, turn)
