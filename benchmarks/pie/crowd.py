"""Several at a time: what is launched on a node, or driven from outside, and how long each takes.

Owns a round (a new one starts whenever one has ended) and the launch of a program from afar. Knows
nothing of what is run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from quire.cli.attachment import RemoteProgram
from quire.cli.client import NodeClient

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one round: how many per second, and the time of the one in the middle."""

    per_s: float
    p50_s: float


async def run_crowd(
    run: Callable[[T], Awaitable[object]], tasks: Sequence[T], at_once: int
) -> Measured:
    """``run`` each of ``tasks``, ``at_once`` of them at a time."""
    times: list[float] = []
    waiting = iter(tasks)

    async def work() -> None:
        for task in waiting:
            began_s = time.perf_counter()
            await run(task)
            times.append(time.perf_counter() - began_s)

    began_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    total_s = time.perf_counter() - began_s
    return Measured(len(tasks) / total_s, sorted(times)[len(times) // 2])


async def run_program(url: str, distance_s: float, request: dict[str, Any]) -> Any:
    """The result of a program that is launched by ``request`` and awaited, ``distance_s`` away."""
    await asyncio.sleep(distance_s)
    with NodeClient(url) as client:
        launched = await asyncio.to_thread(client.launch, request)
        async with RemoteProgram(client, launched["id"]) as program:
            async for _ in program.messages():
                pass
            return await program.result()


__all__ = ["Measured", "run_crowd", "run_program"]
