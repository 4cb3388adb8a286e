"""Draws load curves of one engine: latency of programs against their rate (Autellix, Figs. 12 and
13).

    python benchmarks/autellix/curves.py [--quick] [--workloads sharegpt mixed] [--systems quire]

``systems.py`` states the engine and the systems. Traces (``NUM_PROGRAMS``; all systems play the
same programs at the same times) are as long as makes queues in a run of minutes. Chosen before the
first run: rates as shares of the capacity that is estimated with full batches, and the latency at
which throughput is compared: five times that of programs that have the engine for themselves, P95
ten times, P99 twenty times; two and three times it came behind, because on short traces nobody
reaches five. Throughput is the rate at which a system reaches that latency; *over* is its ratio
within a seed, as the median of the seeds. A system that is at three times the largest of these is
not run at higher rates.

With ``--systems`` only these are played (without a name: none) and the others are read from the
file that an earlier run wrote to ``--out``, if its trace and its engine are the same. With
``--further`` these systems too are played only at loads that the file lacks. With ``--apart NAME``
no file is read, and what is written has NAME behind the workload.
Deterministic: a second run gives the same rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
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
from benchmarks.report import commit, emit, print_table

NUM_PROGRAMS = {"sharegpt": 80, "bfcl": 200, "lats": 30, "mixed": 80, "agents": 80}
QUICK_NUM_PROGRAMS = {"sharegpt": 40, "bfcl": 80, "lats": 8, "mixed": 20, "agents": 40}
LOADS = (0.6, 0.9, 1.2, 1.6, 2.2, 4.0)
QUICK_LOADS = (0.9, 2.2)
QUICK_SYSTEMS = ("fcfs", "mlfq", "atlas", "quire")
BASELINES = ("fcfs, no cache", "fcfs", "mlfq")


def trace_of(workload: str, arguments: Any) -> Trace:
    quick = arguments.quick
    number = arguments.programs or (QUICK_NUM_PROGRAMS if quick else NUM_PROGRAMS)[workload]
    loads = arguments.loads or (QUICK_LOADS if quick else LOADS)
    return Trace(workload, number, seeds_of(arguments), loads)


def settings_of(trace: Trace) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(
        json.dumps({"trace": asdict(trace), "engine": asdict(ENGINE)})
    )
    return made


def earlier_rows(path: Path, settings: Mapping[str, Any], *, may_lack_loads: bool) -> list[Row]:
    """Return the rows in ``path``, which are of the same trace and engine. ``may_lack_loads``: some
    loads of ``settings`` may be missing there."""
    if not path.exists():
        raise SystemExit(f"{path} does not exist: run without --systems and --further first")
    found = json.loads(path.read_text(encoding="utf-8"))
    own = {key: found.get(key) for key in settings}
    loads = settings["trace"]["loads"]
    if may_lack_loads and own["trace"] and set(own["trace"]["loads"]) <= set(loads):
        own["trace"] = own["trace"] | {"loads": loads}
    if own != settings:
        raise SystemExit(
            f"{path} is of {own}, and this run of {settings}: run without --systems and --further"
        )
    return list(found["rows"])


def throughputs(rows: Sequence[Row], alone_s: float) -> list[dict[str, str]]:
    """Return the rate that each system sustains for each part of the latency, also as a multiple of
    the baselines' rates."""
    table = []
    for times, tail in product(TIMES_ALONE, TAILS):
        rates = rates_of(rows, times * alone_s)
        bases = [base for base in BASELINES if base in rates]
        table += [
            {
                "latency": f"{tail}, {times * TAILS[tail]:g} x alone",
                "system": name,
                "programs/s": median_of([*rates[name][tail].values()]),
                **{f"over {base}": over(rates[name][tail], rates[base][tail]) for base in bases},
            }
            for name in SYSTEMS
            if name in rates
        ]
    return table


def at_load(rows: Sequence[Row], load: float) -> list[dict[str, object]]:
    """Return all figures of each system at one load, as means over seeds."""
    table: list[dict[str, object]] = []
    for name in SYSTEMS:
        own = [row for row in rows if row["system"] == name and row["load"] == load]
        if not own or any(row["failed"] for row in own):
            continue
        line: dict[str, object] = {"system": name}
        for part in ("mean", "p50", "p95", "p99"):
            word = "ms/token" if part == "mean" else part
            line[word] = f"{1000 * fmean(row['latency_s'][part] for row in own):.1f}"
        line["response s"] = f"{fmean(row['response_s']['mean'] for row in own):.1f}"
        for key, word in {"makespan_s": "makespan", "tokens_per_s": "tokens/s"}.items():
            line[word] = f"{fmean(row[key] for row in own):.0f}"
        line["cached"] = f"{fmean(row['cached'] for row in own):.2f}"
        table.append(line)
    return table


def draw(path: Path, workload: str, rows: Sequence[Row], slo_s: float) -> None:
    names = [name for name in SYSTEMS if any(row["system"] == name for row in rows)]
    panels = []
    for part in ("mean", "p95", "p99"):
        lines = {name: mean_curve(rows, name, "latency_s", part) for name in names}
        panels.append(Panel(f"s/token, {part}", lines, level=slo_s * TAILS[part]))
    lines = {name: mean_curve(rows, name, "response_s", "mean") for name in names}
    panels.append(Panel("response s, mean", lines))
    draw_lines(path, workload, "programs/s", panels)


def examine_workload(workload: str, names: Sequence[str], arguments: Any, *, is_part: bool) -> None:
    trace = trace_of(workload, arguments)
    settings = settings_of(trace)
    name = f"{workload}-{arguments.apart}" if arguments.apart else workload
    stem = f"autellix-curves-{name}"
    earlier: list[Row] = []
    if is_part:
        path = arguments.out / f"{stem}.json"
        earlier = earlier_rows(path, settings, may_lack_loads=arguments.further)
    kept = KeptRows(None)
    for row in earlier if arguments.further else ():
        kept.add(row)
    alone_s = latency_alone_s(workload, ENGINE)
    slo_s = max(TIMES_ALONE) * alone_s
    contenders = {name: Contender(SYSTEMS[name], ENGINE) for name in names}
    here = {"commit": commit()}  # rows of several runs may stand in one file
    found = sweep(trace, contenders, slo_s, arguments.jobs, kept)
    rows = [row for row in earlier if row["system"] not in names] + [here | row for row in found]
    table = throughputs(rows, alone_s)
    title = f"{workload}: rate at multiples of {1000 * alone_s:.1f} ms/token"
    print_table(title, table)
    for load in trace.loads:
        print_table(f"{workload} at a load of {load:g}", at_load(rows, load))
    draw(arguments.out / f"{stem}.png", workload, rows, slo_s)
    emit(
        f"autellix/curves-{name}",
        arguments.out,
        **settings,
        alone_s=alone_s,
        throughput=table,
        rows=rows,
    )


def main() -> None:
    made = simulation_parser(__doc__)
    made.add_argument("--workloads", nargs="+", choices=NUM_PROGRAMS, default=None,
                      help="default: all (with --quick sharegpt and mixed)")  # fmt: skip
    made.add_argument("--programs", type=int, help="of a trace (default: by workload)")
    made.add_argument("--loads", nargs="+", type=float, help="rising (default: those stated)")
    made.add_argument("--systems", nargs="*", choices=SYSTEMS, default=None,
                      help="play only these, and read the others from --out")  # fmt: skip
    made.add_argument("--further", action="store_true",
                      help="play only what --out lacks: loads may be new")  # fmt: skip
    made.add_argument("--apart", help="play --systems alone, in files with this in their names")
    arguments = made.parse_args()
    quick = ("sharegpt", "mixed") if arguments.quick else tuple(NUM_PROGRAMS)
    for workload in arguments.workloads or quick:
        names = QUICK_SYSTEMS if arguments.quick else tuple(SYSTEMS)
        if arguments.systems is not None:
            names = tuple(arguments.systems)
        is_part = arguments.further or arguments.systems is not None
        is_part = is_part and arguments.apart is None
        examine_workload(workload, names, arguments, is_part=is_part)


if __name__ == "__main__":
    main()
