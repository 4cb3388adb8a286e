"""Runs the engine process of a node with a fake engine, with the start-up and protocol of a real
one."""

from __future__ import annotations

import sys

from quire.core.config import EngineConfig
from quire.core.interfaces import EngineCore
from quire.node.engines import engine_process
from quire.node.supervision.engine_loading import OnProgress
from quire.testing import FakeEngine, fake_pool

NUM_BLOCKS = 4096
"""Room for all programs, similar to an engine's default."""


def load(config: EngineConfig, on_progress: OnProgress) -> EngineCore:
    pool = fake_pool(
        page_size=config.page_size,
        num_blocks=NUM_BLOCKS,
        num_embeds=config.num_embeds,
        max_batch_tokens=config.max_batch_tokens,
    )
    return FakeEngine(pool, model=config.name)


if __name__ == "__main__":
    sys.exit(engine_process.main(load))
