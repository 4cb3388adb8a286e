"""Plays queries of one system: arrivals in, seconds of each query out."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

from benchmarks.ayo.ahead import Counts
from benchmarks.ayo.applications import NUM_CHUNKS, Application, models_of
from benchmarks.ayo.asking import Program
from benchmarks.ayo.stated import Stated
from benchmarks.ayo.systems import System
from benchmarks.ayo.world import World

SEARCH_SHARE = 0.5
"""Of the queries whose judge says that a search is needed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the queries of one load took: seconds from the arrival of a query to its result.
    ``busy``: of each engine, the share of the whole time that it worked. ``counts``: of what has
    run ahead."""

    mean_s: float
    p99_s: float
    makespan_s: float
    busy: Mapping[str, float]
    counts: Counts = field(default_factory=Counts)


@dataclass(frozen=True, slots=True)
class Load:
    """Queries of ``application`` that arrive at these times."""

    application: Application
    arrivals_s: Sequence[float]
    lengths: Sequence[int] = (NUM_CHUNKS,)
    """Of their documents in chunks, in turn."""
    passes: str | None = None
    """In place of the system's."""


Played = tuple[list[Program], World, Counts]
"""The queries of one load, all of which have ended, and what has run ahead in them."""


def play(system: System, loads: Sequence[Load], stated: Stated, core: str) -> list[Finding]:
    """Play all loads together on the same engines; return a finding for each."""
    return [finding(*one) for one in played(system, loads, stated, core)]


def played(system: System, loads: Sequence[Load], stated: Stated, core: str) -> list[Played]:
    """Play all loads together on the same engines; return the queries of each."""
    models = [models_of(load.application, core) for load in loads]
    world = World(system.policy, stated, {name: one[name] for one in models for name in one})
    found: list[Played] = []
    number = 0
    for load in loads:
        own_system = system if load.passes is None else replace(system, passes=load.passes)
        queries = own_system.queries(load.application, world, core)
        drawn, own = random.Random(7), list[Program]()
        for place, arrival_s in enumerate(load.arrivals_s):
            number += 1
            searches = len(load.arrivals_s) == 1 or drawn.random() < SEARCH_SHARE
            query = queries.make(number, searches, load.lengths[place % len(load.lengths)])
            world.simulation.at(arrival_s, query.begin)
            own.append(query)
        found.append((own, world, queries.counts))
    world.simulation.run()
    return found


def play_one(system: System, application: Application, stated: Stated, core: str) -> Program:
    """Play one query alone, and return it when it has ended."""
    world = World(system.policy, stated, models_of(application, core))
    query = system.queries(application, world, core).make(1, searches=True)
    world.simulation.at(0.0, query.begin)
    world.simulation.run()
    return query


def seconds_of(query: Program) -> float:
    assert query.begun_s is not None, "a query has not begun"
    assert query.ended_s is not None, "a query has not ended"
    return query.ended_s - query.begun_s


def poisson(rate: float, num: int, seed: int = 0) -> list[float]:
    drawn, at_s, times = random.Random(seed), 0.0, []
    for _ in range(num):
        at_s += drawn.expovariate(rate)
        times.append(at_s)
    return times


def saturation(system: System, application: Application, stated: Stated, core: str) -> float:
    """Return the queries a second that ``system`` ends when many come at once."""
    num = 100
    (found,) = play(system, [Load(application, [0.0] * num)], stated, core)
    return num / found.makespan_s


def finding(queries: Sequence[Program], world: World, counts: Counts) -> Finding:
    took_s = sorted(map(seconds_of, queries))
    p99_s = took_s[min(len(took_s) - 1, int(0.99 * len(took_s)))]
    makespan_s = max(query.ended_s or 0.0 for query in queries)
    whole_s = world.simulation.now_s
    busy = {name: engine.busy_s / whole_s for name, engine in world.engines.items()}
    return Finding(mean(took_s), p99_s, makespan_s, busy, counts)
