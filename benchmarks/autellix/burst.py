"""Starts far more programs at once than fit, and measures the time until all have ended (Autellix,
Fig. 16).

    python benchmarks/autellix/burst.py [--quick] [--programs 4000] [--fit 40]

All programs of ShareGPT arrive at time 0; the cache has room for 40 of their mean context. Chosen
before the first run: the engine of ``systems.py`` but for its cache, one seed, no host tier.
With *pauses*, the node's default, programs that have no room wait; without, calls are let in one
by one, as the paper's systems do. Deterministic: a second run gives the same rows.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.autellix.admission import mean_context
from benchmarks.autellix.playing import Task, play_all, seeds_of, simulation_parser
from benchmarks.autellix.systems import ENGINE, MESSAGE_S, System
from benchmarks.measurement import figure
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table
from quire.core.scheduler_config import PausingConfig, SchedulerConfig
from quire.simulation.arrivals import Arrivals
from quire.simulation.studies import Study, StudyResult

NUM_PROGRAMS, NUM_FIT = 4000, 40
QUICK_NUM_PROGRAMS, QUICK_NUM_FIT = 120, 12
POLICIES = ("fcfs", "mlfq", "plas", "quire")
PAUSING = {"yes": PausingConfig(), "no": PausingConfig(above=0.0)}


def row_of(study: Study, policy: str, pausing: str, found: StudyResult) -> dict[str, Any]:
    summary = found.summary
    num_prompt = summary.num_prefilled_tokens + summary.num_cached_tokens
    return {
        "seed": study.seed,
        "policy": policy,
        "pauses": pausing,
        "makespan_s": round(summary.makespan_s, 1),
        "tokens_per_s": round(summary.tokens_per_s, 1),
        "cached": round(summary.num_cached_tokens / num_prompt, 3),
        "preempted": summary.num_preemptions,
        "response_s": round(summary.response_s.mean, 1),
        "failed": summary.num_failed,
    }


def main() -> None:
    made = simulation_parser(__doc__)
    made.add_argument("--programs", type=int, default=None, help=f"default: {NUM_PROGRAMS}")
    made.add_argument("--fit", type=int, default=None, help=f"default: {NUM_FIT}")
    made.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    arguments = made.parse_args()
    num_programs = arguments.programs or (QUICK_NUM_PROGRAMS if arguments.quick else NUM_PROGRAMS)
    num_fit = arguments.fit or (QUICK_NUM_FIT if arguments.quick else NUM_FIT)
    seeds = seeds_of(arguments) if arguments.seeds else [1]
    engines = replace(ENGINE, kv_tokens=int(num_fit * mean_context("sharegpt")))
    runs = [(seed, one, how) for seed in seeds for one in arguments.policies for how in PAUSING]
    tasks = []
    for seed, policy, how in runs:
        study = Study(
            "sharegpt", num_programs, seed=seed, engines=engines, arrivals=Arrivals("at-once")
        )
        scheduler = SchedulerConfig(policy=policy, step_quantum_s=MESSAGE_S, pausing=PAUSING[how])
        tasks.append(Task(f"seed {seed}, {policy}, pauses: {how}", study, System(scheduler)))
    findings = play_all(tasks, arguments.jobs)
    rows = [
        row_of(task.study, policy, how, found)
        for (_, policy, how), task, found in zip(runs, tasks, findings, strict=True)
    ]
    base = {row["seed"]: row for row in reversed(rows) if row["pauses"] == "no"}
    for row in rows:  # makespan over that of the first policy without pauses
        row["over the first"] = round(row["makespan_s"] / base[row["seed"]]["makespan_s"], 3)
    print_table(f"{num_programs} programs at once, a pool for {num_fit}", rows)
    bars = {
        f"pauses: {how}": [
            figure([r["makespan_s"] for r in rows if (r["policy"], r["pauses"]) == (one, how)])
            for one in arguments.policies
        ]
        for how in PAUSING
    }
    title = f"{num_programs} programs of ShareGPT at once, room for {num_fit}"
    draw_bars(arguments.out / "autellix-burst.png", title, "makespan, s", arguments.policies, bars)
    emit("autellix/burst", arguments.out, num_programs=num_programs, num_fit=num_fit, rows=rows)


if __name__ == "__main__":
    main()
