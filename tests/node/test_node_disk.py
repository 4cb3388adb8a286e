"""A real engine with a disk tier: sessions find their pages there, and nothing stays in its
directory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from fake_node import TENANT

from quire.control.memory.pool_statistics import PoolStatistics
from quire.core.config import EngineConfig, NodeConfig
from quire.core.ids import EngineId, ModelId
from quire.node import Node, RestartLimits
from quire.node.sessions.handle import SessionHandle
from quire.node.supervision.health import EngineReadiness
from quire.programs.builtin import CompletionRequest, complete

pytestmark = pytest.mark.e2e

ENGINE = EngineId("m#0")
NUM_SESSIONS = 12


def config(source: Path, directory: Path) -> EngineConfig:
    return EngineConfig(
        source=str(source),
        name=ModelId("m"),
        dtype="float32",
        device="cpu",
        page_size=4,
        num_blocks=32,
        host_cache_bytes=1 << 14,
        disk_cache_bytes=1 << 20,
        disk_cache_dir=str(directory),
        num_threads=1,
    )


def left_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def answer(session: SessionHandle, number: int) -> tuple[int, ...]:
    request = CompletionRequest(prompt=(number + 5, *range(5, 24)), max_tokens=4, ignore_eos=True)
    call = session.call(complete, request)
    return tuple([token async for chunk in call for token in chunk.token_ids])


def pool_of(node: Node) -> PoolStatistics:
    (engine,) = node.statistics().controller.engines
    return engine.pool


async def test_sessions_go_on_from_the_disk_and_a_killed_engine_leaves_nothing(
    model_directory: Path, tmp_path: Path
) -> None:
    node = Node(
        NodeConfig(engines=(config(model_directory, tmp_path),)),
        restart_limits=RestartLimits(first_pause_s=0.01),
    )
    await node.start()
    try:
        sessions = [node.session(TENANT, f"s{number}") for number in range(NUM_SESSIONS)]
        first = [await answer(one, number) for number, one in enumerate(sessions)]
        for _ in range(3):  # that they come back has to be learned
            again = [await answer(one, number) for number, one in enumerate(sessions)]
            assert again == first
        assert pool_of(node).num_disk_read > 0
        assert pool_of(node).num_failed_reads == 0
        assert left_in(tmp_path) == []
        (supervisor,) = node._parts.fleet._supervisors
        os.kill(supervisor.transport.pid, signal.SIGKILL)  # type: ignore[union-attr]
        await node.wait_health(
            lambda health: (
                health.engines[ENGINE].restarts == 1
                and health.engines[ENGINE].state is EngineReadiness.READY
            )
        )
        assert pool_of(node).num_disk_free == pool_of(node).num_disk_blocks
        assert left_in(tmp_path) == []
        assert await answer(sessions[0], 0) == first[0]
    finally:
        await node.stop()
