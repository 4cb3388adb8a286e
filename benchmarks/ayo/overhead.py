"""Measures what Quire itself takes of a query: optimising its graph, and handing values from one
primitive to the next (Ayo, section 7.4), as shares of the paced query's time.

    python benchmarks/ayo/overhead.py [--quick]

Measured on this machine, as time of the processor, which others on it hardly change: the optimiser
with and without its cache, the graph scheduler with runners that answer at once, and control's work
for one query alone. What a network would add between machines is not in it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.ayo.applications import APPLICATIONS, Application, models_of
from benchmarks.ayo.playing import play_one, seconds_of
from benchmarks.ayo.stated import CORES, Stated
from benchmarks.ayo.systems import OURS
from benchmarks.ayo.world import World
from benchmarks.measurement import Figure, figure
from benchmarks.options import plain_parser, rounds_of
from benchmarks.report import emit, print_table
from quire.programs.workflow import Graph, GraphCache
from quire.programs.workflow.execution.scheduler import GraphScheduler
from quire.programs.workflow.graphs.primitives import Primitive


class AtOnce:
    """``Runner`` whose primitives have ended when they begin. Lists have the elements that are
    asked for, which are nothing."""

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        num = (primitive.size or 1) * (primitive.fan or 1)
        return {
            port: "" if kind == "text" else [0.0 if kind == "scores" else ""] * max(num, 64)
            for port, kind in primitive.outputs.items()
        }

    async def close(self) -> None:
        """Do nothing: it holds nothing."""


def optimising_s(application: Application, cache: GraphCache | None) -> float:
    app, query = application.make(), application.query()
    if cache is not None:
        Graph.optimize(app, query, application.config, cache=cache)
    return _taken(lambda: Graph.optimize(app, query, application.config, cache=cache))


def optimised(application: Application) -> Graph:
    return Graph.optimize(application.make(), application.query(), application.config)


def scheduling_s(application: Application) -> float:
    """Return the scheduling time of one query."""
    graph = optimised(application)
    runners = {engine.name: AtOnce() for engine in graph.engines}

    def run() -> None:
        scheduler = GraphScheduler(graph.e_graph, graph.query, runners, time.monotonic)
        asyncio.run(scheduler.run())

    return _taken(run)


def control_s(application: Application) -> float:
    """Return the time in which control handles the events of one query, in seconds."""
    system, stated = OURS["quire"], Stated()
    world = World(system.policy, stated, models_of(application, CORES[0]))
    handle, taken = world.simulation.shell.controller.handle, 0.0

    def timed(event: Any) -> Any:
        nonlocal taken
        began_s = time.thread_time()
        actions = handle(event)
        taken += time.thread_time() - began_s
        return actions

    world.simulation.shell.controller.handle = timed  # type: ignore[method-assign]
    query = system.queries(application, world, CORES[0]).make(1, searches=True)
    world.simulation.at(0.0, query.begin)
    world.simulation.run()
    return taken


def _taken(call: Callable[[], object]) -> float:
    began_s = time.thread_time()
    call()
    return time.thread_time() - began_s


def main() -> None:
    arguments = plain_parser(__doc__).parse_args()
    num_rounds = rounds_of(arguments)
    rows: list[dict[str, object]] = []
    for application in APPLICATIONS.values():
        whole_s = seconds_of(play_one(OURS["quire"], application, Stated(), CORES[0]))
        whole = _figure(num_rounds, partial(optimising_s, application, None))
        cached = _figure(num_rounds, partial(optimising_s, application, GraphCache()))
        scheduled = _figure(num_rounds, partial(scheduling_s, application))
        handled = _figure(num_rounds, partial(control_s, application))
        handing_s = scheduled.median + handled.median
        rows.append(
            {
                "application": application.name,
                "primitives": len(optimised(application).e_graph.primitives),
                "query s": round(whole_s, 3),
                "optimising ms": whole.scaled(1e3).rounded(3),
                "cached ms": cached.scaled(1e3).rounded(3),
                "optimising %": round(100 * whole.median / whole_s, 2),
                "cached %": round(100 * cached.median / whole_s, 2),
                "scheduling ms": scheduled.scaled(1e3).rounded(3),
                "control ms": handled.scaled(1e3).rounded(3),
                "handing on %": round(100 * handing_s / whole_s, 2),
            }
        )
    print_table("what Quire itself takes", rows)
    emit("ayo/overhead", arguments.out, num_rounds=num_rounds, rows=rows)


def _figure(num_rounds: int, measure: Callable[[], float]) -> Figure:
    measure()  # warm
    return figure([measure() for _ in range(num_rounds)])


if __name__ == "__main__":
    main()
