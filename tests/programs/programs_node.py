"""Nodes for tests of programs: the real controller over a fake engine."""

from __future__ import annotations

from typing import Any

from quire.core.ids import EngineId
from quire.testing import FakeEngine, LocalNode, ScriptedModel, fake_pool
from quire.testing.scripted import Answer


def node_of(page_size: int = 4, num_blocks: int = 256, **kwargs: Any) -> LocalNode:
    pool = fake_pool(page_size=page_size, num_blocks=num_blocks)
    return LocalNode({EngineId("fake"): FakeEngine(pool, **kwargs)})


def node_saying(answer: Answer, page_size: int = 4) -> tuple[LocalNode, ScriptedModel]:
    """A node whose model answers each prompt with ``answer(prompt)``."""
    from quire.testing import FakeTokenizer

    script = ScriptedModel(answer, FakeTokenizer())
    return node_of(page_size, script=script), script


async def level(node: LocalNode) -> dict[str, int]:
    """What programs hold of an idle node."""
    await node.idle()
    statistics = node.controller.statistics()
    engine = statistics.engines[0]
    return {
        "held": engine.pool.num_held,
        "sequences": engine.num_open_sequences,
        "tables": engine.num_tables,
        "free_embeds": engine.num_free_embeds,
        "queues": statistics.num_queues,
        "pending": statistics.num_pending_commands,
    }
