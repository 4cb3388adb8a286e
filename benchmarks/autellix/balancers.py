"""Compares balancers on several engines (Autellix, Fig. 14).

    python benchmarks/autellix/balancers.py [--quick] [--workloads sharegpt lats] [--loads 1 2 4]

The engines are those of ``systems.py``; each balancer plays the same programs under the same policy
(``plas`` for ShareGPT, ``atlas`` for LATS). Traces are as long on every number of engines: n
engines get n times as many programs. Chosen before the first run: four engines; throughput at twice
the latency of programs that have the engine for themselves. Deterministic: a second run gives the
same rows. In full it takes hours: with ``--rows FILE`` each row is kept as soon as it is there, and
a second run with this file goes on where the first was interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.autellix.playing import seeds_of, simulation_parser
from benchmarks.autellix.rates import median_of, over
from benchmarks.autellix.sweep import (
    TAILS,
    TIMES_ALONE,
    Contender,
    KeptRows,
    Row,
    Trace,
    latency_alone_s,
    mean_curve,
    rates_of,
    sweep,
)
from benchmarks.autellix.systems import ENGINE, SYSTEMS
from benchmarks.plots import Panel, draw_lines
from benchmarks.report import emit, print_table
from quire.control.placement.balancers import BALANCERS

POLICY = {"sharegpt": "plas", "lats": "atlas"}
NUM_PROGRAMS = {"sharegpt": 50, "lats": 15}
QUICK_NUM_PROGRAMS = {"sharegpt": 20, "lats": 4}
LOADS = (0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
QUICK_LOADS = (1.0, 4.0)
NUM_ENGINES = 4


def contender(policy: str, balancer: str, num_engines: int) -> Contender:
    system = SYSTEMS[policy]
    scheduler = replace(system.scheduler, balancer=balancer)
    return Contender(replace(system, scheduler=scheduler), replace(ENGINE, num_engines=num_engines))


def loads_of(arguments: Any) -> Sequence[float]:
    if arguments.loads:
        return [float(load) for load in arguments.loads]
    return QUICK_LOADS if arguments.quick else LOADS


def balancer_table(rows: Sequence[Row], slo_s: float) -> list[dict[str, str]]:
    rates = rates_of(rows, slo_s)
    cached = {name: fmean(row["cached"] for row in rows if row["system"] == name) for name in rates}
    return [
        {
            "latency": tail,
            "balancer": name,
            "cached": f"{cached[name]:.3f}",
            "programs/s": median_of([*found[tail].values()]),
            **{
                f"over {base}": over(found[tail], rates[base][tail])
                for base in ("round_robin", "least_used")
                if base in rates
            },
        }
        for tail in TAILS
        for name, found in rates.items()
    ]


def trace_of(workload: str, arguments: Any) -> Trace:
    numbers = QUICK_NUM_PROGRAMS if arguments.quick else NUM_PROGRAMS
    num_programs = arguments.programs or numbers[workload]
    loads, wait_s = loads_of(arguments), arguments.wait_s
    return Trace(workload, num_programs, seeds_of(arguments), loads, wait_s)


def compare_balancers(workload: str, arguments: Any, kept: KeptRows) -> dict[str, Any]:
    trace = trace_of(workload, arguments)
    slo_s = TIMES_ALONE[0] * latency_alone_s(workload, ENGINE)
    names = arguments.balancers
    contenders = {name: contender(POLICY[workload], name, NUM_ENGINES) for name in names}
    rows = sweep(trace, contenders, slo_s, arguments.jobs, kept)
    table = balancer_table(rows, slo_s)
    print_table(f"{workload}, {NUM_ENGINES} engines, at {1000 * slo_s:.1f} ms/token", table)
    panels = [
        Panel(
            f"s/token, {part}",
            {name: mean_curve(rows, name, "latency_s", part) for name in contenders},
            level=slo_s * TAILS[part],
        )
        for part in ("mean", "p95", "p99")
    ]
    draw_lines(
        arguments.out / f"autellix-balancers-{workload}.png",
        f"{workload}, {NUM_ENGINES} engines, {POLICY[workload]}",
        "programs/s",
        panels,
    )
    return {
        "workload": workload,
        "programs_each": trace.num_programs,
        "wait_s": trace.wait_s,
        "slo_s": slo_s,
        "throughput": table,
        "rows": rows,
    }


def main() -> None:
    made = simulation_parser(__doc__)
    made.add_argument("--workloads", nargs="+", choices=POLICY, default=None,
                      help="default: sharegpt lats (with --quick sharegpt)")  # fmt: skip
    made.add_argument("--loads", nargs="+", type=float, default=None, help=f"default: {LOADS}")
    made.add_argument("--programs", type=int, default=None,
                      help=f"for each engine (default: {NUM_PROGRAMS})")  # fmt: skip
    made.add_argument("--wait-s", type=float, default=0.0,
                      help="seconds between a program's calls: the way to its client, people, "
                      "tools (default: none)")  # fmt: skip
    made.add_argument("--balancers", nargs="+", choices=BALANCERS, default=[*BALANCERS])
    made.add_argument("--rows", type=Path, default=None,
                      help="file of rows: those that it has are not run again")  # fmt: skip
    arguments = made.parse_args()
    workloads = arguments.workloads or (["sharegpt"] if arguments.quick else list(POLICY))
    kept = KeptRows(arguments.rows)
    found = [compare_balancers(one, arguments, kept) for one in workloads]
    emit("autellix/balancers", arguments.out, num_engines=NUM_ENGINES, balancers=found)


if __name__ == "__main__":
    main()
