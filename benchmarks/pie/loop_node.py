"""Starts a node in this process, with its engine in another, and runs the loops of ``loops`` on
it."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.fused_loop import FusedLoop
from benchmarks.peers.worker import Stopwatch
from benchmarks.pie.engine_tap import TappedEngine
from benchmarks.pie.loops import Loop
from quire.core.config import EngineConfig, NodeConfig
from quire.core.ids import ModelId, TenantId
from quire.core.interpreter import collect_seldom, settle, take_short_turns
from quire.core.policy import DispatchPolicy
from quire.node import Node
from quire.programs.api import Api
from quire.programs.inferlet import Inferlet

_TENANT = TenantId("default")


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of many concurrent programs, in seconds. ``step_s``: per token of one program, while
    all decode. ``cpu_s``: of this process, per token of all programs together."""

    total_s: float
    step_s: float
    cpu_s: float
    num_tokens: int


class LoopNode(NamedTuple):
    node: Node
    engine: TappedEngine


@asynccontextmanager
async def loop_node(
    model: Path, num_threads: int | None = None, dispatch: DispatchPolicy | None = None
) -> AsyncIterator[LoopNode]:
    engine = EngineConfig(
        source=str(model),
        name=ModelId("model"),
        dtype="bfloat16",
        kv_cache_bytes=1 << 30,
        host_cache_bytes=0,
        num_embeds=32768,
        num_threads=num_threads,
    )
    tapped: list[TappedEngine] = []

    def connect(config: EngineConfig) -> TappedEngine:
        tapped.append(TappedEngine(config))
        return tapped[-1]

    config = NodeConfig(engines=(engine,))
    node = Node(config, transport_factory=connect, dispatch=dispatch)
    take_short_turns()  # as ``quire serve`` does, with the next two calls
    collect_seldom()
    await node.start()
    settle()
    try:
        yield LoopNode(node, tapped[-1])
    finally:
        await node.stop()


def run_fused(engine: TappedEngine, prompts: list[list[int]], num_tokens: int) -> Ran:
    """Run the engine's own loop, in one message, with the node idle."""
    watch = Stopwatch(len(prompts))
    FusedLoop(engine.execute, engine.info.pool).generate(
        prompts, num_tokens, watch.arrived, message_s=math.inf
    )
    return _ran(watch, 0.0)


async def run_loops(node: Node, loop: Loop, prompts: list[list[int]], num_tokens: int) -> Ran:
    """Run one program per prompt."""
    watch, began_cpu_s = Stopwatch(len(prompts)), time.process_time()
    handles = []
    for index, prompt in enumerate(prompts):

        async def main(api: Api, index: int = index, prompt: list[int] = prompt) -> None:
            await loop(api, prompt, num_tokens, partial(watch.arrived, index))

        handles.append(node.launch(Inferlet("loop", main), tenant=_TENANT))
    for handle in handles:
        await handle.result()
    return _ran(watch, (time.process_time() - began_cpu_s) / num_tokens)


def _ran(watch: Stopwatch, cpu_s: float) -> Ran:
    report = watch.report()
    return Ran(report["total_s"], report["step_s"], cpu_s, int(report["num_tokens"]))
