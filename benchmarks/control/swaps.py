"""Measures the cost of moving KV blocks between device and host.

    python benchmarks/control/swaps.py [--rounds 5] [--quick]

Control: processor time per block when one message moves the blocks out and another moves them back,
from the decision to the end of the transfers. It should not depend on the number of blocks.

Agents: a node with the shipped model serves agents that decode a few tokens, wait for a tool, read
its output and continue. On one node the device holds the pages of all agents, which is the
baseline; on the other it holds a third of them, and the rest are on the host. Both nodes take turns
in the same rounds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measurement import figure, ratio
from benchmarks.options import plain_parser, rounds_of
from benchmarks.report import emit, print_table
from quire.control.memory.content import Content
from quire.control.memory.memory import Memory
from quire.control.memory.operations import OperationList
from quire.core.batch import SwapIn, SwapOut
from quire.core.config import EngineConfig, NodeConfig
from quire.core.ids import EngineId, ModelId, TenantId
from quire.node import Node
from quire.node.models import resolve_source
from quire.programs.api import Api
from quire.programs.inferlet import Inferlet
from quire.programs.sdk import Context
from quire.testing import FakeEngine, fake_pool

SIZES = (1000, 4000, 16000)
AGENTS = 12
TURNS = 6
PROMPT_TOKENS = 480
PAGES_OF_ALL = 1024
PAGES_OF_A_THIRD = 160
TOOL_S = 0.02


def swap_us(num_blocks: int) -> float:
    """Return control's microseconds per block that is moved out and back."""
    pool = fake_pool(page_size=16, num_blocks=num_blocks, num_host_blocks=num_blocks)
    operations = OperationList()
    memory = Memory(EngineId("fake"), FakeEngine(pool).info, operations)
    contents = [memory.retain(Content(None, canonical=False)) for _ in range(num_blocks)]
    for content in contents:
        memory.bind(content)
    began_s = time.process_time()
    for move in (memory.descent.move_out, memory.bring):
        for content in contents:
            move(content)
        (operation,) = operations.take()
        assert isinstance(operation, SwapOut | SwapIn)
        memory.end_transfers(operation.transfers.tolist())
    return (time.process_time() - began_s) / num_blocks * 1e6


@asynccontextmanager
async def node_with(num_pages: int) -> AsyncIterator[Node]:
    engine = EngineConfig(source=resolve_source(None), name=ModelId("model"), num_blocks=num_pages)
    node = Node(NodeConfig(engines=(engine,)))
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def run_agents(node: Node, num_turns: int, first_agent: int) -> float:
    """Return the seconds until the last agent has ended. All prompts of a run differ."""

    async def agent(api: Api, number: int) -> None:
        context = Context(api)
        context.fill([20 + number, *(30 + i % 200 for i in range(PROMPT_TOKENS - 1))])
        for turn in range(num_turns):
            await context.generate_until(max_tokens=8)
            await asyncio.sleep(TOOL_S)
            context.fill([30 + turn, 31, 32, 33])

    began_s = time.perf_counter()
    handles = []
    for number in range(first_agent, first_agent + AGENTS):

        async def main(api: Api, number: int = number) -> None:
            await agent(api, number)

        handles.append(node.launch(Inferlet("agent", main), tenant=TenantId("default")))
    for handle in handles:
        await handle.result()
    return time.perf_counter() - began_s


async def measure(num_rounds: int, num_turns: int) -> tuple[list[float], list[float], int]:
    """Return the seconds on the large device and on the small one, and the number of blocks that
    the small one moved."""
    large_s, small_s = [], []
    async with AsyncExitStack() as stack:
        large = await stack.enter_async_context(node_with(PAGES_OF_ALL))
        small = await stack.enter_async_context(node_with(PAGES_OF_A_THIRD))
        for number in range(num_rounds + 1):
            first = number * AGENTS
            pair = (
                await run_agents(large, num_turns, first),
                await run_agents(small, num_turns, first),
            )
            if number:  # the first round is a warm-up
                large_s.append(pair[0])
                small_s.append(pair[1])
        (engine,) = small.statistics().controller.engines
        pool = engine.pool
        return large_s, small_s, pool.num_swapped_out + pool.num_swapped_in


def main() -> None:
    arguments = plain_parser(__doc__).parse_args()
    num_rounds = rounds_of(arguments)
    control = {num: figure([swap_us(num) for _ in range(num_rounds)]) for num in SIZES}
    large_s, small_s, num_moved = asyncio.run(measure(num_rounds, 2 if arguments.quick else TURNS))
    slower = ratio(small_s, large_s)
    print_table(
        "control, microseconds per block moved out and back",
        [{"blocks": num, "us": str(us)} for num, us in control.items()],
    )
    print_table(
        f"{AGENTS} agents, a third of them on the device",
        [
            {
                "all on the device s": str(figure(large_s)),
                "swapped s": str(figure(small_s)),
                "swapped / all": str(slower),
                "blocks moved": num_moved,
            }
        ],
    )
    emit(
        "control-swaps",
        arguments.out,
        control_us={str(num): us.rounded() for num, us in control.items()},
        all_on_device_s=figure(large_s).rounded(),
        swapped_s=figure(small_s).rounded(),
        swapped_over_all=slower.rounded(),
        num_blocks_moved=num_moved,
    )


if __name__ == "__main__":
    main()
