"""Several engines of one model: they share its calls, and one that is lost takes no other along."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import count
from pathlib import Path

import pytest
from fake_node import TENANT, StartNode, fake_model_files

from quire.core.batch import Batch
from quire.core.batch_result import BatchResult
from quire.core.config import EngineConfig, NodeConfig
from quire.core.errors import EngineFault, QuireError
from quire.core.ids import EngineId, ModelId
from quire.core.interfaces import EngineTransport
from quire.core.scheduler_config import SchedulerConfig
from quire.node import EngineReadiness, Node, NodeHealth, RestartLimits, read_model_files
from quire.node.transports import InProcessTransport
from quire.programs.builtin import CompletionRequest, complete
from quire.testing import FakeEngine, fake_pool

FIRST, SECOND = EngineId("fake#0"), EngineId("fake#1")
TURNS = SchedulerConfig(balancer="round_robin")


class FaultyEngine(FakeEngine):
    """Faults on every message that has work."""

    def execute(self, batch: Batch) -> BatchResult:
        if batch.forward is not None or batch.advance is not None:
            raise EngineFault("the fake memory is in doubt")
        return super().execute(batch)


async def ask(node: Node, max_tokens: int = 5) -> tuple[int, ...] | QuireError:
    """The tokens of an answer, or the error that ended the call."""
    request = CompletionRequest(prompt=(1, 2, 3), max_tokens=max_tokens, ignore_eos=True)
    call = node.session(TENANT).call(complete, request)
    try:
        return tuple([token async for chunk in call for token in chunk.token_ids])
    except QuireError as exc:
        return exc
    finally:
        await call.wait_closed()


def num_batches(node: Node) -> dict[EngineId, int]:
    return {one.engine: one.num_batches for one in node.statistics().controller.engines}


async def test_replicas_share_the_calls_of_their_model(start_node: StartNode) -> None:
    config = EngineConfig(source="fake", name=ModelId("fake"), page_size=4, replicas=2)
    node = await start_node(NodeConfig(engines=(config,), scheduler=TURNS))
    assert list(node.health().engines) == [FIRST, SECOND]
    answers = [await ask(node) for _ in range(4)]
    assert len(set(answers)) == 1
    assert all(num > 0 for num in num_batches(node).values())
    assert len(num_batches(node)) == 2


async def test_a_replica_that_is_given_up_leaves_the_model_to_the_other(
    start_node: StartNode,
) -> None:
    numbers = count()

    def transport(config: EngineConfig) -> EngineTransport:
        kind = FaultyEngine if next(numbers) == 0 else FakeEngine
        pool = fake_pool(page_size=config.page_size, num_blocks=256)
        return InProcessTransport("fake", lambda: kind(pool, model="fake"))

    node = await start_node(
        NodeConfig(
            engines=(EngineConfig(source="fake", name=ModelId("fake"), page_size=4, replicas=2),),
            scheduler=TURNS,
        ),
        transport_factory=transport,
        model_files=fake_model_files,
        restart_limits=RestartLimits(max_losses=1),
    )
    first, second = await ask(node), await ask(node)  # in the order in which they came up
    assert first == second
    assert isinstance(first, tuple), "what one could not do the other did"

    def failed(health: NodeHealth) -> list[EngineId]:
        found = health.engines.items()
        return [engine for engine, one in found if one.state is EngineReadiness.FAILED]

    await node.wait_health(lambda health: bool(failed(health)))
    assert [len(answer) for _ in range(3) if isinstance(answer := await ask(node), tuple)] == [
        5
    ] * 3
    health = node.health()
    assert (health.ready, health.alive) == (True, True)
    assert health.detail.startswith(f"engine {failed(health)[0]} is failed")
    assert node.model("fake").id == "fake"


@pytest.mark.e2e
@pytest.mark.timeout(400)
async def test_a_killed_process_of_one_replica_is_started_again_meanwhile_the_other_serves(
    start_node: StartNode, model_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(
        source=str(model_directory), name=ModelId("fake"), dtype="float32", device="cpu",
        kv_cache_bytes=1 << 20, host_cache_bytes=1 << 20, num_threads=1, replicas=2,
    )  # fmt: skip
    node = await start_node(
        NodeConfig(engines=(config,), scheduler=TURNS),
        transport_factory=None,
        model_files=read_model_files,
    )
    whole = await ask(node, 20)
    assert isinstance(whole, tuple)
    assert await ask(node, 20) == whole, "the same weights and the same tokens on the other one"
    first, second = node._parts.fleet._supervisors
    assert first.transport.pid != second.transport.pid  # type: ignore[union-attr]
    os.kill(first.transport.pid, signal.SIGKILL)  # type: ignore[union-attr]
    await node.wait_health(lambda health: health.engines[FIRST].state is not EngineReadiness.READY)
    assert node.health().ready, "the other engine takes new work"
    during = await asyncio.gather(*(ask(node, 20) for _ in range(3)))
    assert during == [whole] * 3
    await node.wait_health(lambda health: health.engines[FIRST].state is EngineReadiness.READY)
    assert node.health().detail == ""
    killed = [
        one.name for one in caplog.records if "ended by SIGKILL; its last" in one.getMessage()
    ]
    assert killed == [f"quire.engine_process.{FIRST}"], "the log says which of the two it was"
