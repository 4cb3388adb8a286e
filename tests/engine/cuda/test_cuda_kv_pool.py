"""The cache on the device: positions that kernels read there follow what happens to slots."""

from __future__ import annotations

import numpy as np
import torch

from quire.core.config import EngineConfig
from quire.core.ids import ModelId
from quire.engine.cuda.kv_pool import CudaKVPool
from quire.engine.kv_cache.pool import BlockShape
from quire.engine.layers.key_turn import KeyTurn
from quire.engine.layers.rope_config import RopeConfig


def test_the_device_knows_where_slots_went() -> None:
    pool = CudaKVPool.allocate(
        BlockShape(1, 2, 16, 16, torch.float32),
        EngineConfig(source="", name=ModelId("model"), num_blocks=4, max_batch_tokens=1),
        torch.device("cpu"),
        KeyTurn([RopeConfig(1e4)], [0], 16),
    )
    slots = np.arange(3, dtype=np.int32)
    pool.reposition(slots, slots + 5)
    pool.reposition(slots[::2], np.array([30, 31], np.int32))
    assert pool.slot_positions_S[:4].tolist() == [30, 6, 31, -1]
