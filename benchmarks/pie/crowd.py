"""Runs many tasks at once, as programs on a node or driven from outside, and measures how long each
takes.

Owns a round (a new run starts whenever one has ended) and the launch of programs from a distance.
Does not know what is run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import httpx

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CrowdMeasurement:
    """One round: runs per second, and their median duration."""

    per_s: float
    p50_s: float


async def run_crowd(
    run: Callable[[T], Awaitable[object]], tasks: Sequence[T], at_once: int
) -> CrowdMeasurement:
    """Run each of ``tasks``, ``at_once`` of them at a time."""
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
    return CrowdMeasurement(len(tasks) / total_s, sorted(times)[len(times) // 2])


class Launcher:
    """Launches programs on the node at ``url``, ``distance_s`` away. Use ``async with``.

    Keeps its connections open: creating a client costs as much processor time as a short program.
    """

    def __init__(self, url: str, distance_s: float) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=300)
        self._distance_s = distance_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def run(self, request: dict[str, Any]) -> Any:
        """Launch a program with ``request``, wait for it and return its result."""
        await asyncio.sleep(self._distance_s)
        answer = await self._http.post("/v1/programs", json={**request, "wait": True})
        answer.raise_for_status()
        program = answer.json()
        if program["state"] != "finished":
            raise SystemExit(f"a program has not finished: {program}")
        return program["result"]
