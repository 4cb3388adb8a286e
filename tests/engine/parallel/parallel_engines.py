"""Configurations of small engines on two ranks."""

from __future__ import annotations

from quire.core.config import EngineConfig
from quire.core.ids import ModelId


def tiny(source: str, **changes: object) -> EngineConfig:
    settings: dict[str, object] = {
        "dtype": "float32",
        "device": "cpu",
        "page_size": 4,
        "num_blocks": 96,
        "host_cache_bytes": 1 << 20,
        "num_embeds": 256,
        "num_threads": 1,
        "tensor_parallel": 2,
        **changes,
    }
    return EngineConfig(source=source, name=ModelId("m"), **settings)  # type: ignore[arg-type]
