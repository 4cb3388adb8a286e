"""Shows how throughput grows with the number of engines (Autellix, Fig. 15).

    python benchmarks/autellix/replicas.py [--quick] [--engines 1 8] [--loads 0.9 1.2]

Every number of engines serves the same programs, which arrive at the same times: a trace of 100
programs for each of eight engines is split at random over the groups into which the engines are
divided, so one engine serves eight traces, one after the other, and eight engines one. A group of
more engines serves exactly the programs of the groups that it unites. Traces of other programs for
each number of engines would differ more than the engines do: three long conversations fill one
memory.

Chosen before the first run: the engines of ``systems.py``, ShareGPT, ``plas``, the balancer
``quire``, and the rate at twice the latency of programs that run alone. *Of linear* is that rate
over the rate of one engine with the same seed, for each engine: the mean of the seeds and its
95 % interval (Student's t). Deterministic: a second run gives the same rows; ``--rows FILE`` keeps
each and goes on where a run was interrupted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.autellix.balancers import contender
from benchmarks.autellix.playing import Task, in_processes, play, seeds_of, simulation_parser
from benchmarks.autellix.rates import Rate, rate_at, ratio_of
from benchmarks.autellix.sweep import TIMES_ALONE, latency_alone_s
from benchmarks.autellix.systems import ENGINE
from benchmarks.plots import Panel, draw_lines
from benchmarks.report import commit, emit, print_table
from quire.simulation.arrivals import Arrivals
from quire.simulation.outcomes import ProgramOutcome, summarize
from quire.simulation.studies import Study
from quire.simulation.workloads import create_workload, draw_programs
from quire.simulation.workloads.recorded import RecordedLoad

WORKLOAD, POLICY, BALANCER = "sharegpt", "plas", "quire"
NUM_PROGRAMS, QUICK_NUM_PROGRAMS = 100, 20
ENGINES, QUICK_ENGINES = (1, 2, 4, 8), (1, 2)
LOADS, QUICK_LOADS = (0.6, 0.9, 1.2), (0.9,)
T_95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}
"""The 0.975 quantile of Student's t, by the number of seeds."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a trace that one group of engines serves. ``trace``: load and seed."""

    num_engines: int
    group: int
    load: float
    seed: int


def groups(num_programs: int, num_engines: int, most: int, seed: int) -> list[int]:
    """Return the group of each program, if ``most`` engines are divided into groups of
    ``num_engines``. A group of more engines has the programs of the groups that it unites."""
    random = Random(f"groups/{seed}")
    return [random.randrange(most) // num_engines for _ in range(num_programs)]


def task_of(share: Share, num_each: int, most: int) -> Task:
    number = num_each * most
    rate = share.load * most * Study(WORKLOAD, 1, engines=ENGINE).capacity()
    plans = draw_programs(create_workload(WORKLOAD), number, share.seed)
    times_s = Arrivals(rate=rate).times_s(number, share.seed)
    own = [
        one
        for one, group in enumerate(groups(number, share.num_engines, most, share.seed))
        if group == share.group
    ]
    system = contender(POLICY, BALANCER, share.num_engines)
    recorded = RecordedLoad(
        tuple(plans[one] for one in own), tuple(times_s[one] for one in own), num_left_out=0
    )
    study = Study(WORKLOAD, len(own), share.seed, system.engines, recorded=recorded)
    label = f"{share.num_engines} engines at {share.load:g}, seed {share.seed}, {share.group}"
    return Task(label, study, system.system)


def row_of(key: Mapping[str, Any], outcomes: Sequence[ProgramOutcome]) -> Row:
    """Return the programs of all groups as one row."""
    summary = summarize(outcomes)
    num_prompt = summary.num_prefilled_tokens + summary.num_cached_tokens
    return {
        **key,
        "programs": summary.num_programs,
        "ms_per_token": round(1000 * summary.token_latency_s.mean, 2),
        "ms_per_token_p95": round(1000 * summary.token_latency_s.p95, 2),
        "response_s": round(summary.response_s.mean, 1),
        "cached": round(summary.num_cached_tokens / num_prompt, 3),
        "failed": summary.num_failed,
    }


def sustained(rows: Sequence[Row], num_engines: int, seed: int, slo_s: float) -> Rate:
    """Return the load for each engine at which the mean latency exceeds ``slo_s``."""
    own = [row for row in rows if (row["engines"], row["seed"]) == (num_engines, seed)]
    points = sorted((row["load"], row["ms_per_token"] / 1000) for row in own)
    return rate_at(points, slo_s)


def of_linear(rows: Sequence[Row], num_engines: int, slo_s: float) -> str:
    """Return what ``num_engines`` sustain for each engine over what one sustains: the mean of the
    seeds and its interval; bounds alone where a curve does not reach the latency."""
    ratios = []
    for seed in dict.fromkeys(row["seed"] for row in rows):
        rates = [sustained(rows, number, seed, slo_s) for number in (num_engines, 1)]
        ratio = ratio_of(*rates)
        ratios += [] if ratio is None else [ratio]
    if any(one.bound for one in ratios) or not ratios:
        return ", ".join(map(str, ratios)) or "-"
    return interval([one.value for one in ratios])


def interval(values: Sequence[float]) -> str:
    """Return the mean and the half width of its 95 % interval."""
    if len(values) not in T_95:
        return f"{fmean(values):.3f}"
    half = T_95[len(values)] * stdev(values) / sqrt(len(values))
    return f"{fmean(values):.3f} ± {half:.3f}"


def lines_of(rows: Sequence[Row], slo_s: float) -> list[dict[str, str]]:
    """Return a line for each number of engines: the latency at each load over that of one engine
    on the same programs, and the rates."""
    lines = []
    seeds = [*dict.fromkeys(row["seed"] for row in rows)]
    for number in dict.fromkeys(row["engines"] for row in rows):
        line = {"engines": str(number)}
        for load in dict.fromkeys(row["load"] for row in rows):
            found = {
                (row["engines"], row["seed"]): row["ms_per_token"]
                for row in rows
                if row["load"] == load
            }
            both = [seed for seed in seeds if (number, seed) in found and (1, seed) in found]
            line[f"ms/token at {load:g}"] = ", ".join(f"{found[number, one]:.1f}" for one in both)
            if both:
                ratios = [found[number, one] / found[1, one] for one in both]
                line[f"over one engine at {load:g}"] = interval(ratios)
        line["load at the limit"] = ", ".join(
            str(sustained(rows, number, seed, slo_s))
            for seed in seeds
            if any((row["engines"], row["seed"]) == (number, seed) for row in rows)
        )
        line["of linear"] = of_linear(rows, number, slo_s)
        lines.append(line)
    return lines


def kept_rows(path: Path | None) -> list[Row]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    made = simulation_parser(__doc__)
    made.add_argument("--engines", nargs="+", type=int, default=None,
                      help=f"1 and divisors of the largest (default: {ENGINES})")  # fmt: skip
    made.add_argument("--loads", nargs="+", type=float, default=None, help=f"default: {LOADS}")
    made.add_argument("--programs", type=int, default=None,
                      help=f"for each engine (default: {NUM_PROGRAMS})")  # fmt: skip
    made.add_argument("--rows", type=Path, default=None,
                      help="file of rows: those that it has are not run again")  # fmt: skip
    arguments = made.parse_args()
    quick = arguments.quick
    engines = arguments.engines or (QUICK_ENGINES if quick else ENGINES)
    most = max(engines)
    if 1 not in engines or any(most % number for number in engines):
        made.error("--engines has to contain 1, and its numbers have to divide the largest")
    num_each = arguments.programs or (QUICK_NUM_PROGRAMS if quick else NUM_PROGRAMS)
    rows = kept_rows(arguments.rows)
    trace = {"most": most, "programs_each": num_each}
    keys: list[Row] = [
        {**trace, "engines": number, "load": load, "seed": seed}
        for seed in seeds_of(arguments)
        for load in arguments.loads or (QUICK_LOADS if quick else LOADS)
        for number in engines
    ]
    keys = [key for key in keys if not any(key.items() <= row.items() for row in rows)]
    shares = [
        (index, Share(key["engines"], group, key["load"], key["seed"]))
        for index, key in enumerate(keys)
        for group in range(most // key["engines"])
    ]
    tasks = [task_of(share, num_each, most) for _, share in shares]
    found: dict[int, list[ProgramOutcome]] = {}
    num_found = dict.fromkeys(range(len(keys)), 0)
    for number, result in in_processes(play, tasks, arguments.jobs):
        index = shares[number][0]
        found.setdefault(index, []).extend(result.outcomes)
        num_found[index] += 1
        print(f"{tasks[number].label}", file=sys.stderr, flush=True)
        if num_found[index] == most // keys[index]["engines"]:
            row = {"commit": commit(), **row_of(keys[index], found.pop(index))}
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
            if arguments.rows is not None:
                with arguments.rows.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    rows = [row for row in rows if trace.items() <= row.items()]
    rows.sort(key=lambda row: (row["engines"], row["load"], row["seed"]))
    slo_s = TIMES_ALONE[0] * latency_alone_s(WORKLOAD, ENGINE)
    table = lines_of(rows, slo_s)
    print_table(f"{WORKLOAD} at {1000 * slo_s:.1f} ms/token", table)
    curves = {
        f"{number} engines": [
            (load, fmean(row["ms_per_token"] / 1000 for row in own))
            for load in dict.fromkeys(row["load"] for row in rows)
            if (own := [r for r in rows if (r["engines"], r["load"]) == (number, load)])
        ]
        for number in engines
    }
    draw_lines(
        arguments.out / "autellix-replicas.png",
        f"{WORKLOAD}, {POLICY}, balancer {BALANCER}, the same programs",
        "load for each engine",
        [Panel("s/token, mean", curves, level=slo_s)],
    )
    emit("autellix/replicas", arguments.out, slo_s=slo_s, table=table, rows=rows)


if __name__ == "__main__":
    main()
