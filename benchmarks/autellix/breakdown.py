"""Shows where the time of programs goes: calls under way, waiting, cache hits, control (Autellix,
Figs. 4-7 and 17).

    python benchmarks/autellix/breakdown.py [--quick] [--workloads sharegpt lats] [--load 1.0]

The engine of ``systems.py``, one seed. *Fig. 4*: calls in the engine over time. *Fig. 5*: what
share of their time programs wait, by load, under ``fcfs``. *Fig. 6*: waiting over service, of calls
by their output and of programs by their calls. *Fig. 7*: the share of a prompt that is found in the
cache, by its length, of first and of later calls of a program; programs of these workloads have no
text in common, so a first call finds what its own threads have. *Fig. 17*: what a generated token
takes: engine, waiting, and control's processor time on this machine, the one figure that is
measured. Nothing is swapped: what sessions leave between calls is dropped and computed again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.autellix.call_records import (
    Recorded,
    by_calls,
    by_output,
    by_prompt,
    live_calls,
    record,
)
from benchmarks.autellix.playing import Task, play_all, seeds_of, simulation_parser
from benchmarks.autellix.sweep import Trace
from benchmarks.autellix.systems import ENGINE, SYSTEMS
from benchmarks.plots import Panel, draw_lines
from benchmarks.report import emit, print_table
from quire.core.ids import ProgramId

NUM_PROGRAMS = {"sharegpt": 60, "bfcl": 150, "lats": 20}
QUICK_NUM_PROGRAMS = {"sharegpt": 20, "bfcl": 50, "lats": 5}
POLICIES = ("fcfs", "mlfq", "atlas", "quire")
LOADS, QUICK_LOADS = (0.5, 0.8, 1.1), (0.5, 1.1)
OUTPUT_EDGES = (1, 32, 64, 128, 256, 512, 1024)
CALL_EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PROMPT_EDGES = (1, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
NUM_POINTS = 24

Points = list[tuple[float, float]]


def figures_of(runs: Mapping[str, Recorded]) -> dict[str, dict[str, Points]]:
    """Return the lines of Figs. 4, 6 and 7: of Figs. 4 and 6 for each policy, of Fig. 7 for the
    first of them."""
    first = next(iter(runs.values()))
    begun: dict[ProgramId, float] = {}
    for call in first.calls:
        begun[call.program] = min(begun.get(call.program, call.arrival_s), call.arrival_s)
    return {
        "live calls": {name: live_calls(run.calls, NUM_POINTS) for name, run in runs.items()},
        "by output": {name: by_output(run.calls, OUTPUT_EDGES) for name, run in runs.items()},
        "by calls": {name: by_calls(run.outcomes, CALL_EDGES) for name, run in runs.items()},
        "cached": {
            "first calls": by_prompt(
                first.calls, PROMPT_EDGES, lambda call: call.arrival_s == begun[call.program]
            ),
            "later calls": by_prompt(
                first.calls, PROMPT_EDGES, lambda call: call.arrival_s != begun[call.program]
            ),
        },
    }


def per_token(workload: str, runs: Mapping[str, Recorded]) -> list[dict[str, Any]]:
    """Return the rows of Fig. 17: milliseconds for each generated token, by policy."""
    rows = []
    for name, run in runs.items():
        num_tokens = sum(one.num_output_tokens for one in run.outcomes)
        rows.append(
            {
                "workload": workload,
                "policy": name,
                "engine ms": round(1000 * sum(c.service_s for c in run.calls) / num_tokens, 2),
                "waiting ms": round(1000 * sum(c.waiting_s for c in run.calls) / num_tokens, 2),
                "control ms": round(1000 * run.control_s / num_tokens, 4),
                "preempted": sum(one.num_preemptions for one in run.calls),
            }
        )
    return rows


def waiting_shares(
    workloads: Sequence[str], loads: Sequence[float], seed: int, arguments: Any
) -> list[dict[str, Any]]:
    """Return the rows of Fig. 5: the means over programs of waiting and of engine time, in seconds,
    by load under ``fcfs``."""
    numbers = QUICK_NUM_PROGRAMS if arguments.quick else NUM_PROGRAMS
    tasks = [
        Task(
            f"{workload} at {load:g}, fcfs",
            Trace(workload, numbers[workload], [seed], loads).study(ENGINE, load, seed),
            SYSTEMS["fcfs"],
        )
        for workload in workloads
        for load in loads
    ]
    rows = []
    for task, found in zip(tasks, play_all(tasks, arguments.jobs), strict=True):
        waiting_s, service_s = found.summary.waiting_s.mean, found.summary.service_s.mean
        rows.append(
            {
                "workload": task.study.workload,
                "load": task.label.split(" at ")[1].split(",")[0],
                "waiting s": round(waiting_s, 2),
                "engine s": round(service_s, 2),
                "waiting share": round(waiting_s / (waiting_s + service_s), 3),
            }
        )
    return rows


def draw(path: Path, workload: str, lines: Mapping[str, Mapping[str, Points]]) -> None:
    panels = [
        Panel("calls under way", lines["live calls"], logarithmic=False, across="s"),
        Panel("waiting / engine, calls", lines["by output"], across="generated tokens"),
        Panel("waiting / engine, programs", lines["by calls"], across="calls"),
        Panel("cached", lines["cached"], logarithmic=False, across="tokens of prompt"),
    ]
    draw_lines(path, workload, "", panels)


def main() -> None:
    made = simulation_parser(__doc__)
    made.add_argument("--workloads", nargs="+", choices=NUM_PROGRAMS, default=["sharegpt", "lats"])
    made.add_argument("--load", type=float, default=1.0)
    arguments = made.parse_args()
    seed = seeds_of(arguments)[0]
    numbers = QUICK_NUM_PROGRAMS if arguments.quick else NUM_PROGRAMS
    shares = waiting_shares(
        list(NUM_PROGRAMS), QUICK_LOADS if arguments.quick else LOADS, seed, arguments
    )
    tokens, lines = [], {}
    for workload in arguments.workloads:
        trace = Trace(workload, numbers[workload], [seed], [arguments.load])
        runs = {}
        for name in POLICIES:
            print(f"{workload} at {arguments.load:g}, {name}", file=sys.stderr, flush=True)
            study = trace.study(ENGINE, arguments.load, seed)
            runs[name] = record(study, SYSTEMS[name].scheduler)
        tokens += per_token(workload, runs)
        lines[workload] = figures_of(runs)
        draw(arguments.out / f"autellix-breakdown-{workload}.png", workload, lines[workload])
    print_table("waiting of programs under fcfs (Fig. 5)", shares)
    print_table(f"a generated token at a load of {arguments.load:g} (Fig. 17)", tokens)
    emit(
        "autellix/breakdown",
        arguments.out,
        seed=seed,
        load=arguments.load,
        waiting=shares,
        per_token=tokens,
        lines=lines,
    )


if __name__ == "__main__":
    main()
