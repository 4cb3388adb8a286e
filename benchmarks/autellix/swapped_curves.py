"""Draws load curves of one engine that swaps to the host, with blocks moved together and one at a
time (Autellix, Fig. 19: throughput).

    python benchmarks/autellix/swapped_curves.py [--quick] [--workloads sharegpt bfcl]

The engine is that of ``systems.py`` with eight times its cache on the host. A message waits for the
blocks whose moves begin in it, as in the paper (4.2.2). A block of 64 tokens of Llama 3.1 8B has
8 MiB, which take 0.35 ms together (24 GB/s, pinned memory over PCIe 4.0). The paper has measured
that moves of single blocks take three to seven times as long; both ends and five are played.
Throughput is compared as in ``curves.py``: *gained* is the rate at a latency with blocks moved
together over that with blocks moved one at a time, as the median of the seeds. ``bulk.py`` measures
how much longer single moves take on this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.autellix.playing import seeds_of, simulation_parser
from benchmarks.autellix.rates import median_of, over
from benchmarks.autellix.sweep import (
    TIMES_ALONE,
    Contender,
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

HOST_TIMES = 8
BLOCK_S = 64 * 131_072 / 24e9
SLOWER = (3, 5, 7)
POLICIES = ("mlfq", "plas", "quire")
NUM_PROGRAMS = {"sharegpt": 80, "bfcl": 150, "mixed": 60}
QUICK_NUM_PROGRAMS = {"sharegpt": 40, "bfcl": 60, "mixed": 20}
LOADS = {
    "sharegpt": (0.6, 0.9, 1.2, 1.6, 2.2),
    "bfcl": (0.9, 1.2, 1.6, 2.2),
    "mixed": (0.6, 1.6, 4.0),
}
QUICK_LOADS = (0.9, 2.2)


def contenders() -> dict[str, Contender]:
    """Return each policy with each time of a block."""
    made = {}
    for policy in POLICIES:
        for times in (1, *SLOWER):
            cost = replace(ENGINE.cost, moved_block_s=times * BLOCK_S)
            host_tokens = HOST_TIMES * ENGINE.kv_tokens
            engines = replace(ENGINE, cost=cost, host_tokens=host_tokens)
            made[name_of(policy, times)] = Contender(SYSTEMS[policy], engines)
    return made


def name_of(policy: str, times: int) -> str:
    return f"{policy}, together" if times == 1 else f"{policy}, {times} x as long"


def gains(rows: Sequence[Row], alone_s: float) -> list[dict[str, object]]:
    """Return for each policy and latency the rate with blocks moved together, and what it is over
    the rate with blocks moved one at a time."""
    table: list[dict[str, object]] = []
    for times in TIMES_ALONE:
        rates = rates_of(rows, times * alone_s)
        for policy in POLICIES:
            together = rates[name_of(policy, 1)]["mean"]
            line: dict[str, object] = {
                "latency": f"{times:g} x alone",
                "policy": policy,
                "programs/s": median_of([*together.values()]),
            }
            for slower in SLOWER:
                single = rates[name_of(policy, slower)]["mean"]
                line[f"gained over {slower} x"] = over(together, single)
            table.append(line)
    return table


def draw(path: Path, workload: str, rows: Sequence[Row]) -> None:
    panels = [
        Panel(
            f"{policy}: s/token, mean",
            {
                name: mean_curve(rows, name, "latency_s", "mean")
                for name in (name_of(policy, times) for times in (1, *SLOWER))
            },
        )
        for policy in POLICIES
    ]
    draw_lines(path, f"{workload}, blocks moved together and one at a time", "programs/s", panels)


def examine_workload(workload: str, arguments: Any) -> None:
    numbers: Mapping[str, int] = QUICK_NUM_PROGRAMS if arguments.quick else NUM_PROGRAMS
    loads = QUICK_LOADS if arguments.quick else LOADS[workload]
    trace = Trace(workload, numbers[workload], seeds_of(arguments), loads)
    alone_s = latency_alone_s(workload, ENGINE)
    slo_s = max(TIMES_ALONE) * alone_s
    rows = sweep(trace, contenders(), slo_s, arguments.jobs)
    table = gains(rows, alone_s)
    print_table(f"{workload}: throughput at multiples of {1000 * alone_s:.1f} ms/token", table)
    draw(arguments.out / f"autellix-swapped_curves-{workload}.png", workload, rows)
    emit(
        f"autellix/swapped_curves-{workload}",
        arguments.out,
        trace=asdict(trace),
        engine=asdict(ENGINE),
        host_times=HOST_TIMES,
        block_s=BLOCK_S,
        alone_s=alone_s,
        gains=table,
        rows=rows,
    )


def main() -> None:
    made = simulation_parser(__doc__)
    made.add_argument("--workloads", nargs="+", choices=NUM_PROGRAMS, default=["sharegpt", "bfcl"])
    arguments = made.parse_args()
    for workload in arguments.workloads:
        examine_workload(workload, arguments)


if __name__ == "__main__":
    main()
