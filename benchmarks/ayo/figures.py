"""Computes the rows of each of the paper's figures: who took how long. Nothing is measured on the
machine that plays them, so the same options give the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from benchmarks.ayo.applications import ADVANCED, APPLICATIONS, NAIVE, Application, models_of
from benchmarks.ayo.frameworks import ChainQuery
from benchmarks.ayo.modules import Asked, Module
from benchmarks.ayo.playing import Finding, Load, play, play_one, poisson, saturation, seconds_of
from benchmarks.ayo.stated import Stated
from benchmarks.ayo.systems import BASELINES, OURS, OURS_AND_AHEAD, PASSES, SPECULATING, System

Row = dict[str, object]
CHAIN = BASELINES["LlamaDist-TO"]
PARALLEL = BASELINES["LlamaDistPC-TO"]
QUIRE = OURS["quire"]
POLICIES = ("fcfs", "invocation", "topology", "critical_path")
CORE_OF_ABLATIONS, CORE_OF_COLOCATED = "llama-30b", "llama-2-13b"
"""Those of the paper's Figures 10 and 11, and of its Figure 9."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all figures are played with. ``shares``: of the rate at which LlamaDist-TO is
    saturated."""

    stated: Stated
    num_queries: int
    shares: Sequence[float]

    def arrivals(self, share: float, rate: float) -> list[float]:
        return poisson(share * rate, self.num_queries)

    def mean_s(self, system: System, load: Load, core: str) -> tuple[float, float]:
        """Return the mean latency of a query and the 99th percentile, in seconds."""
        (found,) = play(system, [load], self.stated, core)
        return round(found.mean_s, 3), round(found.p99_s, 3)


def breakdown(setting: Setting, core: str) -> list[Row]:
    """Return the rows of Fig. 1: the seconds of each module of LlamaDist, and their share of the
    whole."""
    rows: list[Row] = []
    for application in APPLICATIONS.values():
        query = play_one(CHAIN, application, setting.stated, core)
        assert isinstance(query, ChainQuery), "it is LlamaDist's"
        whole_s = seconds_of(query)
        models = models_of(application, core)
        for module in query.modules:
            for part, part_s in _parts(module, query.times[module.name], setting.stated, models):
                row: Row = {"application": application.name, "module": part}
                rows.append(
                    row | {"seconds": round(part_s, 3), "share": round(part_s / whole_s, 3)}
                )
    return rows


def _parts(
    module: Module, whole_s: float, stated: Stated, models: Mapping[str, str]
) -> Iterator[tuple[str, float]]:
    """Yield the parts of a module with their seconds: prefilling and decoding for the synthesis,
    where decoding is all tokens of its rounds except the first of each."""
    if module.name != "synthesis":
        yield module.name, whole_s
        return
    times = stated.models[models["core"]]
    tokens = [
        max(one.num_tokens for one in requests if isinstance(one, Asked))
        for requests in module.rounds
    ]
    decoding_s = sum(num - 1 for num in tokens) * (times.step_s + times.row_s)
    yield "synthesis, prefilling", whole_s - decoding_s
    yield "synthesis, decoding", decoding_s


def alone(setting: Setting, application: Application, core: str) -> list[Row]:
    """Return the rows of Fig. 3: one query under each system."""
    rows: list[Row] = []
    chain_s = seconds_of(play_one(CHAIN, application, setting.stated, core))
    for name, system in {**BASELINES, **OURS_AND_AHEAD}.items():
        took_s = seconds_of(play_one(system, application, setting.stated, core))
        row: Row = {"application": application.name, "core": core, "system": name}
        rows.append(row | {"seconds": round(took_s, 3), "faster": round(chain_s / took_s, 3)})
    return rows


def end_to_end(
    setting: Setting, application: Application, core: str, systems: Mapping[str, System]
) -> list[Row]:
    """Return the rows of Fig. 8: mean latency against the rate, under each of ``systems``."""
    rate = saturation(CHAIN, application, setting.stated, core)
    rows: list[Row] = []
    for share in setting.shares:
        load = Load(application, setting.arrivals(share, rate))
        for name, system in systems.items():
            mean_s, p99_s = setting.mean_s(system, load, core)
            row: Row = {"application": application.name, "core": core, "load": share}
            row |= {"per_s": round(share * rate, 3), "system": name}
            rows.append(row | {"mean_s": mean_s, "p99_s": p99_s})
    return rows


def speedups(rows: Sequence[Row]) -> list[Row]:
    """Return how many times as fast as each baseline Quire is, from the rows of Fig. 8."""
    table: list[Row] = []
    points = dict.fromkeys((row["application"], row["core"], row["load"]) for row in rows)
    for point in points:
        means = {
            str(row["system"]): float(str(row["mean_s"]))
            for row in rows
            if (row["application"], row["core"], row["load"]) == point
        }
        line: Row = dict(zip(("application", "core", "load"), point, strict=True))
        line["quire s"] = round(means["quire"], 2)
        if SPECULATING in means:
            line["speculating s"] = round(means[SPECULATING], 2)
        others = {one: means[one] for one in BASELINES if one in means}
        table.append(line | {one: round(took / means["quire"], 2) for one, took in others.items()})
    return table


def co_located(setting: Setting) -> list[Row]:
    """Return the rows of Fig. 9: naive and advanced RAG on the same engines, and each by itself,
    against LlamaDistPC. Together each arrives at half of its share."""
    core, rows = CORE_OF_COLOCATED, list[Row]()
    applications = (NAIVE, ADVANCED)
    rates = [saturation(CHAIN, one, setting.stated, core) for one in applications]
    systems = {"LlamaDistPC-TO": PARALLEL, **OURS_AND_AHEAD}
    for share in setting.shares:
        half = [
            Load(one, poisson(share / 2 * rate, setting.num_queries, seed))
            for seed, (one, rate) in enumerate(zip(applications, rates, strict=True))
        ]
        whole = [
            Load(one, setting.arrivals(share, rate))
            for one, rate in zip(applications, rates, strict=True)
        ]
        for name, system in systems.items():
            together = play(system, half, setting.stated, core)
            single = [play(system, [load], setting.stated, core)[0] for load in whole]
            for kind, found in (("co-located", together), ("single", single)):
                for one, finding in zip(applications, found, strict=True):
                    row: Row = {"load": share, "kind": kind, "application": one.name}
                    rows.append(row | {"system": name, "mean_s": round(finding.mean_s, 3)})
    return rows


def ablations(setting: Setting) -> list[Row]:
    """Return the rows of Figs. 10 and 11: choices of passes under ``topology``, policies with all
    passes; one query (load 0) and under load."""
    core, rows = CORE_OF_ABLATIONS, list[Row]()
    contenders = [(name, "topology") for name in PASSES]
    contenders += [("all", policy) for policy in POLICIES if policy != "topology"]
    rate = saturation(CHAIN, ADVANCED, setting.stated, core)
    for share in (0.0, *setting.shares):
        arrivals_s = setting.arrivals(share, rate) if share else [0.0]
        for passes, policy in contenders:
            system = System("quire", policy, passes)
            mean_s, p99_s = setting.mean_s(system, Load(ADVANCED, arrivals_s), core)
            row: Row = {"load": share, "passes": passes, "policy": policy}
            rows.append(row | {"mean_s": mean_s, "p99_s": p99_s})
    return rows


def sensitivity(setting: Setting, core: str) -> list[Row]:
    """Halve and double what is assumed: return how many times as fast as LlamaDist-TO and
    LlamaDistPC-TO one query is, and queries at each share."""
    rows: list[Row] = []
    for factor in (0.5, 1.0, 2.0):
        varied = replace(setting, stated=Stated().scaled(factor))
        for application in (ADVANCED,):
            rate = saturation(CHAIN, application, varied.stated, core)
            for share in (0.0, *setting.shares):
                arrivals_s = varied.arrivals(share, rate) if share else [0.0]
                load = Load(application, arrivals_s)
                chain_s, parallel_s, quire_s = (
                    varied.mean_s(one, load, core)[0] for one in (CHAIN, PARALLEL, QUIRE)
                )
                row: Row = {"factor": factor, "application": application.name, "load": share}
                row |= {"LlamaDist s": chain_s, "quire s": quire_s}
                row |= {"LlamaDist": round(chain_s / quire_s, 2)}
                rows.append(row | {"LlamaDistPC": round(parallel_s / quire_s, 2)})
    return rows


def speculation(
    setting: Setting, application: Application, core: str, same: float, found_share: float
) -> list[Row]:
    """Return the latencies with and without speculation at each share of the load, and with all
    queries at once, where the seconds are those until the last query ends. ``same`` and
    ``found_share``: see ``ahead``."""
    rate = saturation(CHAIN, application, setting.stated, core)
    at_once = [0.0] * setting.num_queries
    loads = {str(share): setting.arrivals(share, rate) for share in setting.shares}
    rows: list[Row] = []
    for name, arrivals_s in {**loads, "at once": at_once}.items():
        load = Load(application, arrivals_s)
        ahead_system = replace(QUIRE, passes="ahead", same_order=same, found=found_share)
        (plain,) = play(QUIRE, [load], setting.stated, core)
        (ahead,) = play(ahead_system, [load], setting.stated, core)
        took_s = [one.makespan_s if name == "at once" else one.mean_s for one in (plain, ahead)]
        row: Row = {"application": application.name, "same order": same, "found": found_share}
        row |= {"load": name}
        row |= {"plain s": round(took_s[0], 3), "ahead s": round(took_s[1], 3)}
        row |= {"change %": round(100 * (took_s[1] / took_s[0] - 1), 1)}
        row |= {"plain p99": round(plain.p99_s, 3), "ahead p99": round(ahead.p99_s, 3)}
        row |= {"busy plain": _busy(plain), "busy ahead": _busy(ahead)}
        counts = ahead.counts
        row |= {"begun": counts.begun, "kept": counts.kept, "tokens dropped": counts.dropped_tokens}
        rows.append(row)
    return rows


def beside_speculation(
    setting: Setting, application: Application, core: str, num_pairs: int
) -> list[Row]:
    """Play queries that run nothing ahead, beside as many others that do not either, or that do:
    return the mean over so many pairs of arrivals, and the least and the most."""
    rate, rows = saturation(CHAIN, application, setting.stated, core), list[Row]()
    for share in setting.shares:
        pairs = [
            [
                _beside(setting, application, core, share / 2 * rate, 2 * pair, passes)
                for passes in ("all", "ahead")
            ]
            for pair in range(num_pairs)
        ]
        changes = [100 * (ahead_s / plain_s - 1) for plain_s, ahead_s in pairs]
        plain_s, ahead_s = (mean(column) for column in zip(*pairs, strict=True))
        row: Row = {"application": f"{application.name}, beside it", "load": share}
        row |= {"plain s": round(plain_s, 3), "ahead s": round(ahead_s, 3)}
        row |= {"change %": round(100 * (ahead_s / plain_s - 1), 1), "pairs": num_pairs}
        rows.append(row | {"least %": round(min(changes), 1), "most %": round(max(changes), 1)})
    return rows


def _beside(
    setting: Setting, application: Application, core: str, rate: float, seed: int, passes: str
) -> float:
    own, others = (poisson(rate, setting.num_queries, seed + n) for n in (0, 1))
    loads = [Load(application, own), Load(application, others, passes=passes)]
    return play(QUIRE, loads, setting.stated, core)[0].mean_s


def _busy(finding: Finding) -> float:
    """Return the mean share of time in which the engines of the models are busy."""
    models = [share for name, share in finding.busy.items() if "#" in name]
    return round(sum(models) / len(models), 3)
