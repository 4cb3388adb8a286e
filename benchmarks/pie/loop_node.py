"""A node in this process, its engine in one of its own, that runs the loops of ``loops``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pie.loops import Loop
from quire.core.config import EngineConfig, NodeConfig, SchedulerConfig
from quire.core.ids import ModelId, TenantId
from quire.node import Node
from quire.programs.api import Api
from quire.programs.inferlet import Inferlet

_TENANT = TenantId("default")


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of many programs at once, in seconds. ``step_s``: per token of one program, from when
    all had their first one on. ``cpu_s``: of this process, per token of all programs together."""

    total_s: float
    step_s: float
    cpu_s: float
    num_tokens: int


@asynccontextmanager
async def loop_node(
    model: Path, scheduler: SchedulerConfig | None = None, num_threads: int | None = None
) -> AsyncIterator[Node]:
    engine = EngineConfig(
        source=str(model),
        name=ModelId("model"),
        dtype="bfloat16",
        kv_cache_bytes=1 << 30,
        host_cache_bytes=0,
        num_embeds=32768,
        num_threads=num_threads,
    )
    node = Node(NodeConfig(engines=(engine,), scheduler=scheduler or SchedulerConfig()))
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def run_loops(node: Node, loop: Loop, prompts: list[list[int]], num_tokens: int) -> Ran:
    """One program per prompt."""
    arrivals: list[tuple[int, float, int]] = []
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    handles = []
    for index, prompt in enumerate(prompts):

        async def main(api: Api, index: int = index, prompt: list[int] = prompt) -> None:
            def arrived(count: int) -> None:
                arrivals.append((index, time.perf_counter(), count))

            await loop(api, prompt, num_tokens, arrived)

        handles.append(node.launch(Inferlet("loop", main), tenant=_TENANT))
    for handle in handles:
        await handle.result()
    cpu_s = time.process_time() - began_cpu_s
    first_s = {index: at_s for index, at_s, _ in reversed(arrivals)}
    all_started_s, last_s = max(first_s.values()), max(at_s for _, at_s, _ in arrivals)
    behind = sum(count for _, at_s, count in arrivals if at_s > all_started_s)
    return Ran(
        total_s=last_s - began_s,
        step_s=(last_s - all_started_s) * len(prompts) / max(behind, 1),
        cpu_s=cpu_s / num_tokens,
        num_tokens=len(prompts) * num_tokens,
    )


__all__ = ["Ran", "loop_node", "run_loops"]
