"""Starts far more programs at once than fit, and measures the time until all have ended (Autellix,
Fig. 16).

    python benchmarks/autellix/burst.py [--quick] [--programs 4000] [--fit 40]
    python benchmarks/autellix/burst.py --runs fcfs quire+pauses --seeds 1 2 3 --rows rows.jsonl

All programs of ShareGPT arrive at time 0; the cache has room for 40 of their mean context. Chosen
before the first run: the engine of ``systems.py`` but for its cache, one seed, no host tier.
With *pauses*, the node's default, programs that have no room wait; without, calls are let in one
by one, as the paper's systems do. Deterministic: a second run gives the same rows; ``--rows FILE``
keeps each as soon as it is there and goes on where a run was interrupted.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.autellix.admission import mean_context
from benchmarks.autellix.playing import Task, play_all, seeds_of, simulation_parser
from benchmarks.autellix.systems import ENGINE, MESSAGE_S, System
from benchmarks.measurement import Figure, figure
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table
from quire.core.scheduler_config import PausingConfig, SchedulerConfig
from quire.simulation.arrivals import Arrivals
from quire.simulation.studies import Study, StudyResult

NUM_PROGRAMS, NUM_FIT = 4000, 40
QUICK_NUM_PROGRAMS, QUICK_NUM_FIT = 120, 12
POLICIES = ("fcfs", "mlfq", "plas", "quire")
PAUSING = {"yes": PausingConfig(), "no": PausingConfig(above=0.0)}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """A policy, and whether it pauses programs (a key of ``PAUSING``)."""

    policy: str
    pauses: str

    @classmethod
    def named(cls, text: str) -> Run:
        """Return the run called ``POLICY`` or, with pauses, ``POLICY+pauses``."""
        policy = text.removesuffix("+pauses")
        if policy not in POLICIES:
            raise ArgumentTypeError(f"{text!r}: give one of {POLICIES}, or that and '+pauses'")
        return cls(policy, "no" if policy == text else "yes")


def key_of(num_programs: int, num_fit: int, seed: int, run: Run) -> Row:
    """Return the part of a row that says what was run."""
    return {
        "programs": num_programs,
        "fit": num_fit,
        "seed": seed,
        "policy": run.policy,
        "pauses": run.pauses,
    }


def row_of(key: Row, found: StudyResult) -> Row:
    summary = found.summary
    num_prompt = summary.num_prefilled_tokens + summary.num_cached_tokens
    return {
        **key,
        "makespan_s": round(summary.makespan_s, 1),
        "tokens_per_s": round(summary.tokens_per_s, 1),
        "cached": round(summary.num_cached_tokens / num_prompt, 3),
        "preempted": summary.num_preemptions,
        "response_s": round(summary.response_s.mean, 1),
        "failed": summary.num_failed,
    }


def task_of(key: Row) -> Task:
    """Return the run of ``key``."""
    engines = replace(ENGINE, kv_tokens=int(key["fit"] * mean_context("sharegpt")))
    study = Study(
        "sharegpt",
        key["programs"],
        seed=key["seed"],
        engines=engines,
        arrivals=Arrivals("at-once"),
    )
    pausing = PAUSING[key["pauses"]]
    scheduler = SchedulerConfig(policy=key["policy"], step_quantum_s=MESSAGE_S, pausing=pausing)
    label = f"seed {key['seed']}, {key['policy']}, pauses: {key['pauses']}"
    return Task(label, study, System(scheduler))


def played(keys: list[Row], num_jobs: int, path: Path | None) -> list[Row]:
    """Play the runs of ``keys`` whose rows the file at ``path`` lacks, and keep theirs there.
    Return the rows of all, in the order of ``keys``."""
    kept: list[Row] = []
    if path is not None and path.exists():
        kept = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    missing = [key for key in keys if not any(key.items() <= row.items() for row in kept)]

    def note(number: int, found: StudyResult) -> None:
        row = row_of(missing[number], found)
        kept.append(row)
        if path is not None:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    play_all([task_of(key) for key in missing], num_jobs, note)
    return [next(row for row in kept if key.items() <= row.items()) for key in keys]


def makespans(rows: list[Row], policy: str, pauses: str) -> Figure | None:
    """Return the makespans of all seeds of one run, if it was made."""
    found = [r["makespan_s"] for r in rows if (r["policy"], r["pauses"]) == (policy, pauses)]
    return figure(found) if found else None


def main() -> None:
    made = simulation_parser(__doc__)
    made.add_argument("--programs", type=int, default=None, help=f"default: {NUM_PROGRAMS}")
    made.add_argument("--fit", type=int, default=None, help=f"default: {NUM_FIT}")
    made.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES),
                      help="each without and with pauses")  # fmt: skip
    made.add_argument("--runs", nargs="+", type=Run.named, default=None, metavar="POLICY[+pauses]",
                      help="these alone, the baseline first (in place of --policies)")  # fmt: skip
    made.add_argument("--rows", type=Path, default=None,
                      help="file of rows: those that it has are not run again")  # fmt: skip
    arguments = made.parse_args()
    num_programs = arguments.programs or (QUICK_NUM_PROGRAMS if arguments.quick else NUM_PROGRAMS)
    num_fit = arguments.fit or (QUICK_NUM_FIT if arguments.quick else NUM_FIT)
    seeds = seeds_of(arguments) if arguments.seeds else [1]
    runs = arguments.runs or [Run(one, how) for one in arguments.policies for how in PAUSING]
    keys = [key_of(num_programs, num_fit, seed, run) for seed in seeds for run in runs]
    rows = played(keys, arguments.jobs, arguments.rows)
    base = {row["seed"]: row for row in reversed(rows) if row["pauses"] == "no"}
    for row in rows:  # makespan over that of the first policy without pauses
        first = base.get(row["seed"])
        row["over the first"] = first and round(row["makespan_s"] / first["makespan_s"], 3)
    print_table(f"{num_programs} programs at once, a pool for {num_fit}", rows)
    policies = [*dict.fromkeys(run.policy for run in runs)]
    bars = {f"pauses: {how}": [makespans(rows, one, how) for one in policies] for how in PAUSING}
    title = f"{num_programs} programs of ShareGPT at once, room for {num_fit}"
    draw_bars(arguments.out / "autellix-burst.png", title, "makespan, s", policies, bars)
    emit("autellix/burst", arguments.out, num_programs=num_programs, num_fit=num_fit, rows=rows)


if __name__ == "__main__":
    main()
