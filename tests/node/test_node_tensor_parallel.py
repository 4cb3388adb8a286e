"""A tensor-parallel group is one engine: lost with any of its ranks, started again as a whole."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest
from fake_node import TENANT

from quire.core.config import EngineConfig, NodeConfig
from quire.core.errors import EngineLost
from quire.core.ids import EngineId, ModelId
from quire.node import Node, RestartLimits
from quire.node.supervision.health import EngineReadiness
from quire.programs.builtin import CompletionRequest, complete

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a process by its pidfd"),
]

PROMPT = tuple(range(5, 17))


def config(directory: Path, ranks: int) -> EngineConfig:
    return EngineConfig(
        source=str(directory),
        name=ModelId(f"on-{ranks}"),
        dtype="float32",
        device="cpu",
        kv_cache_bytes=1 << 20,
        host_cache_bytes=1 << 20,
        num_threads=1,
        tensor_parallel=ranks,
    )


async def completion(node: Node, name: str) -> list[int]:
    request = CompletionRequest(prompt=PROMPT, max_tokens=10, model=ModelId(name), ignore_eos=True)
    session = node.session(TENANT)
    return [token async for chunk in session.call(complete, request) for token in chunk.token_ids]


def ended(pidfd: int) -> bool:
    found, _, _ = select.select([pidfd], [], [], 60)
    os.close(pidfd)
    return bool(found)


def rank_of(node: Node) -> int:
    (pid,) = node.model("on-2").info.extra["rank_pids"]
    return int(pid)


async def test_the_group_is_lost_and_restarted_and_stopped_as_a_whole(
    model_directory: Path,
) -> None:
    node = Node(
        NodeConfig(engines=(config(model_directory, 1), config(model_directory, 2))),
        restart_limits=RestartLimits(first_pause_s=0.01),
    )
    await node.start()
    try:
        alone = await completion(node, "on-1")
        assert await completion(node, "on-2") == alone
        first = rank_of(node)
        gone = os.pidfd_open(first)
        os.kill(first, signal.SIGKILL)
        assert ended(gone)
        with pytest.raises(EngineLost, match=f"rank 1 .pid {first}. was ended by SIGKILL"):
            await completion(node, "on-2")
        await node.wait_health(
            lambda health: (
                health.engines[EngineId("on-2#0")].restarts == 1
                and health.engines[EngineId("on-2#0")].state is EngineReadiness.READY
            )
        )
        assert rank_of(node) != first
        assert await completion(node, "on-2") == alone
        last = os.pidfd_open(rank_of(node))
    finally:
        await node.stop()
    assert ended(last)
