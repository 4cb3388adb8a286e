"""Shows what queries wait for under load, by policy: the order of queries and that of their steps.

Rows of two kinds: mean and P99 for several arrivals, and for the first of them what each module
adds to the way that decides (back from what ended last to what ended last of that which it waited
for, and so on), in the mean of all queries. ``critical_path`` is played without profiles as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.ayo.applications import ADVANCED
from benchmarks.ayo.figures import CHAIN, CORE_OF_ABLATIONS, Row, Setting
from benchmarks.ayo.playing import Load, finding, played, poisson, saturation
from benchmarks.ayo.query import PacedQuery
from benchmarks.ayo.systems import System
from benchmarks.ayo.timeline import added, module_names

SEEDS = (0, 1, 2)
HEAVY, ALONE = 0.9, 0.01
"""Shares of LlamaDist-TO's saturation."""
CONTENDERS: Mapping[str, System] = MappingProxyType(
    {
        **{one: System("quire", one) for one in ("fcfs", "topology", "critical_path")},
        "critical_path, no profiles": System("quire", "critical_path", is_timed=False),
    }
)


def rows(setting: Setting) -> list[Row]:
    rate = saturation(CHAIN, ADVANCED, setting.stated, CORE_OF_ABLATIONS)
    whole: list[Row] = []
    parts: list[Row] = _parts(setting, "critical_path", ALONE, rate)
    for name, system in CONTENDERS.items():
        for seed in SEEDS:
            arrivals_s = poisson(HEAVY * rate, setting.num_queries, seed)
            load = Load(ADVANCED, arrivals_s)
            ((queries, world, counts),) = played(system, [load], setting.stated, CORE_OF_ABLATIONS)
            found = finding(queries, world, counts)
            row: Row = {"policy": name, "load": HEAVY, "seed": seed}
            whole.append(row | {"mean_s": round(found.mean_s, 3), "p99_s": round(found.p99_s, 3)})
        parts += _parts(setting, name, HEAVY, rate)
    return whole + parts


def _parts(setting: Setting, name: str, share: float, rate: float) -> list[Row]:
    arrivals_s = poisson(share * rate, setting.num_queries, SEEDS[0])
    load = Load(ADVANCED, arrivals_s)
    ((queries, _, _),) = played(CONTENDERS[name], [load], setting.stated, CORE_OF_ABLATIONS)
    sums: dict[str, float] = {}
    for query in queries:
        assert isinstance(query, PacedQuery), "they are Quire's"
        for module, added_s in waited(query).items():
            sums[module] = sums.get(module, 0.0) + added_s
    return [
        {"policy": name, "load": share, "module": module, "s": round(sum_s / len(queries), 3)}
        for module, sum_s in sums.items()
    ]


def waited(query: PacedQuery) -> dict[str, float]:
    """Return by module the seconds that it adds to the critical path, with its waiting."""
    assert query.begun_s is not None, "it has begun"
    ended_s = {one: end_s for one, (_, end_s) in query.spans.items()}
    graph = query.graph.primitives
    parents = {one: tuple(graph[one].parents & ended_s.keys()) for one in ended_s}
    names = module_names(graph)
    return added(ended_s, parents, names.__getitem__, query.begun_s)
