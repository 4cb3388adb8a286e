"""Holds what the figures in virtual time share: who takes part, one point of a curve, and its
table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from benchmarks.microserving.stated import CALL_S, CHUNKED, WHOLE, Prefill, a100, link
from benchmarks.options import plain_parser
from benchmarks.plots import Panel
from quire.cluster.routing.strategy import StrategySource
from quire.cluster.simulation import ClusterStudy, Lengths, RequestLoad, examine_cluster

NUM_REQUESTS, QUICK_REQUESTS = 300, 30


@dataclass(frozen=True, slots=True)
class Contender:
    """A strategy over ``num_nodes`` stated engines."""

    name: str
    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    num_nodes: int = 2
    prefill: Prefill = WHOLE


Row = dict[str, Any]


def options(
    description: str | None, contenders: Sequence[Contender] = ()
) -> argparse.ArgumentParser:
    """Return a parser of the options of a figure's script. ``contenders``: those from whom
    ``--only`` may choose (``chosen``)."""
    made = plain_parser(description)
    if contenders:
        names = [one.name for one in contenders]
        made.add_argument("--only", nargs="+", choices=names, default=names, metavar="CONTENDER")
        made.add_argument(
            "--chunk-steps",
            type=float,
            default=CHUNKED.chunk_steps,
            help="of chunked engines: the time of a chunk beside decodes, in steps "
            "(default: %(default)s)",
        )
    made.add_argument(
        "--requests", type=int, help=f"of each point (default: {NUM_REQUESTS}; P99 needs many)"
    )
    made.add_argument("--rates", nargs="+", type=float, help="requests a second and engine")
    made.add_argument(
        "--seeds", nargs="+", type=int, default=[0], help="of the requests (default: %(default)s)"
    )
    return made


def num_requests_of(arguments: argparse.Namespace) -> int:
    if arguments.requests is not None:
        return max(1, int(arguments.requests))
    return QUICK_REQUESTS if arguments.quick else NUM_REQUESTS


def chosen(contenders: Sequence[Contender], arguments: argparse.Namespace) -> list[Contender]:
    chunked = replace(CHUNKED, chunk_steps=arguments.chunk_steps)
    return [
        replace(one, prefill=chunked) if one.prefill is CHUNKED else one
        for one in contenders
        if one.name in arguments.only
    ]


def curves(
    arguments: argparse.Namespace,
    contenders: Sequence[Contender],
    rates: Iterable[float],
    prompts: Lengths,
    answers: Lengths,
    *,
    labels: Mapping[str, Any] | None = None,
    **load: Any,
) -> list[Row]:
    """Return a point for each contender, rate and seed. ``load``: further fields of
    ``RequestLoad``."""
    num_requests = num_requests_of(arguments)
    return [
        measure(
            contender,
            RequestLoad(
                num_requests, rate * contender.num_nodes, prompts, answers, seed=seed, **load
            ),
            **(labels or {}),
            seed=seed,
        )
        for rate in rates
        for contender in contenders
        for seed in arguments.seeds
    ]


def medians(rows: Sequence[Row]) -> list[Row]:
    """Return the medians over the seeds of each point, figure by figure; failed requests are
    added up."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in _POINT), []).append(row)
    return [_median(found) for found in groups.values()]


_POINT = ("prompt", "rate", "contender")


def _median(rows: Sequence[Row]) -> Row:
    def of(name: str) -> Any:
        values = [row[name] for row in rows]
        if name == "failed":
            return sum(values)
        return values[0] if name in _POINT else round(median(values), 3)

    return {name: of(name) for name in rows[0] if name != "seed"} | {"seeds": len(rows)}


def measure(contender: Contender, load: RequestLoad, **labels: Any) -> Row:
    """Return one point of a curve. ``load``: its rate is that of all nodes together."""
    study = ClusterStudy(
        load=load,
        num_nodes=contender.num_nodes,
        engine=a100(contender.prefill),
        scheduler=contender.prefill.scheduler(),
        link=link(),
        call_s=CALL_S,
    )
    source = StrategySource(contender.strategy, options=contender.options)
    summary = examine_cluster(study, source).summary
    prompts = summary.num_cached_tokens + summary.num_prefilled_tokens
    row = {
        **labels,
        "contender": contender.name,
        "rate": round(load.rate / contender.num_nodes, 3),
        "of capacity": round(load.rate / study.capacity(), 2),
        "failed": summary.num_failed,
        "TTFT s": round(summary.ttft_s.mean, 3),
        "TTFT p99 s": round(summary.ttft_s.p99, 3),
        "TPOT ms": round(1e3 * summary.tpot_s.mean, 2),
        "TPOT p99 ms": round(1e3 * summary.tpot_s.p99, 2),
        "JCT s": round(summary.jct_s.mean, 3),
        "JCT p99 s": round(summary.jct_s.p99, 3),
        "cached": round(summary.num_cached_tokens / max(1, prompts), 3),
        "sent GB": round(summary.num_sent_bytes / 1e9, 1),
    }
    print(" ".join(f"{name}={value}" for name, value in row.items()), file=sys.stderr, flush=True)
    return row


def over(rows: Sequence[Row], figure: str, contender: str, base: str, **where: Any) -> list[Row]:
    """Return ``figure`` of ``contender`` over that of ``base`` for each rate at which both were
    measured, among the rows that match ``where``."""
    found = {
        (row["rate"], row["contender"]): row[figure]
        for row in rows
        if all(row[name] == value for name, value in where.items())
    }
    return [
        {**where, "rate": rate, "figure": figure, "ratio": round(value / found[rate, base], 3)}
        for (rate, name), value in found.items()
        if name == contender and (rate, base) in found
    ]


def panels(rows: Sequence[Row], figures: Iterable[tuple[str, str]], **where: Any) -> list[Panel]:
    """Return one panel for each column, under its label."""
    chosen = [row for row in rows if all(row[name] == value for name, value in where.items())]
    names = list(dict.fromkeys(row["contender"] for row in chosen))
    return [
        Panel(
            label,
            {
                name: [(row["rate"], row[column]) for row in chosen if row["contender"] == name]
                for name in names
            },
        )
        for column, label in figures
    ]


ALL_FIGURES = (
    ("TTFT s", "mean TTFT, s"),
    ("TTFT p99 s", "P99 TTFT, s"),
    ("TPOT ms", "mean TPOT, ms"),
    ("TPOT p99 ms", "P99 TPOT, ms"),
    ("JCT s", "mean JCT, s"),
    ("JCT p99 s", "P99 JCT, s"),
)
