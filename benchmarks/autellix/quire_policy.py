"""Compares the policy ``quire`` with every other one and with the bounds, on five workloads at
three loads.

    python benchmarks/autellix/quire_policy.py [--quick] [--workloads bfcl] [--loads 0.95]

Engine and messages are those of ``simulated.py``. The number of programs was chosen before the
first run; ``quire`` begins each trace without knowing anything, so what it learns on the way is
part of the figure. ``over_best`` compares its row with the best of the policies that a node can
run, with the same seed, and ``over_gittins`` with the bound that knows the workload, both by mean
token latency and by mean response; ``gap_closed`` is the share of the distance from ``atlas`` to
``srpt``. Of seeds the median and the worst are shown. Each workload has its own JSON and drawing.
Deterministic: a second run gives the same rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.autellix.simulated import ENGINE, row
from benchmarks.options import plain_parser
from benchmarks.plots import Panel, draw_lines
from benchmarks.report import commit, emit, print_table
from quire.simulation.studies import SIMULATED_POLICIES, Study

NUM_PROGRAMS = {"sharegpt": 100, "bfcl": 150, "agents": 80, "lats": 24, "mixed": 90}
QUICK_SHARE = 2
POLICIES = ("quire", "fcfs", "mlfq", "plas", "atlas", "srpt", "gittins")
BOUNDS = ("srpt", "gittins")
OF_ONE_THREAD = ("sharegpt", "bfcl", "agents")
"""Workloads under which ``atlas`` is ``plas``: it is not played."""
MEASURES = ("ms_per_token", "response_s")

Row = Mapping[str, object]


def compare(rows: Sequence[Row]) -> dict[str, float | str]:
    """Return, for one trace with one seed, how much worse ``quire`` is than the best other policy
    and than ``gittins``. What was not played is left out."""
    by_policy = {str(one["policy"]): one for one in rows}
    found: dict[str, float | str] = {}
    if "quire" not in by_policy:
        return found
    for measure in MEASURES:
        values = {name: float(str(one[measure])) for name, one in by_policy.items()}
        own = values["quire"]
        others = {name: one for name, one in values.items() if name not in (*BOUNDS, "quire")}
        if others:
            best = min(others, key=others.__getitem__)
            found[f"best_{measure}"] = best
            found[f"over_best_{measure}"] = own / others[best]
        if "gittins" in values:
            found[f"over_gittins_{measure}"] = own / values["gittins"]
        if {"atlas", "srpt"} <= values.keys():
            gap = values["atlas"] - values["srpt"]
            found[f"gap_closed_{measure}"] = (values["atlas"] - own) / gap if gap else 1.0
    return found


def over_seeds(load: float, found: Sequence[Mapping[str, float | str]]) -> list[Row]:
    """Return a row for each measure of one load: the median over seeds and, in brackets, the worst
    seed."""
    lines: list[Row] = []
    for measure in MEASURES:
        line: dict[str, object] = {"load": load, "measure": measure}
        for name, worst_of in (("over_best", max), ("over_gittins", max), ("gap_closed", min)):
            values = [
                float(one[f"{name}_{measure}"]) for one in found if f"{name}_{measure}" in one
            ]
            if values:
                line[name] = f"{median(values):.3f} ({worst_of(values):.3f})"
        line["best"] = ", ".join(
            dict.fromkeys(str(one[f"best_{measure}"]) for one in found if f"best_{measure}" in one)
        )
        lines.append(line)
    return lines


def medians(rows: Sequence[Row], policies: Sequence[str], loads: Sequence[float]) -> list[Row]:
    """Return the medians over seeds of each policy at each load."""
    lines: list[Row] = []
    for load in loads:
        for policy in policies:
            own = [one for one in rows if one["policy"] == policy and one["load"] == load]
            line: dict[str, object] = {"load": load, "policy": policy}
            for measure in (*MEASURES, "ms_per_token_p95", "response_p95_s"):
                line[measure] = round(median(float(str(one[measure])) for one in own), 2)
            lines.append(line)
    return lines


def draw(path: Path, title: str, lines: Sequence[Row], policies: Sequence[str]) -> None:
    panels = []
    for measure, label in {
        "ms_per_token": "ms/token, mean",
        "ms_per_token_p95": "ms/token, P95",
        "response_s": "response s, mean",
    }.items():
        curves = {
            policy: [
                (float(str(one["load"])), float(str(one[measure])))
                for one in lines
                if one["policy"] == policy
            ]
            for policy in policies
        }
        panels.append(Panel(label, curves, logarithmic=False))
    draw_lines(path, title, "load", panels)


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--workloads", nargs="+", choices=NUM_PROGRAMS, default=[*NUM_PROGRAMS])
    made.add_argument("--loads", nargs="+", type=float, default=[0.8, 0.95, 1.5])
    made.add_argument("--policies", nargs="+", choices=SIMULATED_POLICIES, default=[*POLICIES])
    made.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    made.add_argument(
        "--keep", action="store_true", help="read rows of policies that are not played from --out"
    )
    arguments = made.parse_args()
    for workload in arguments.workloads:
        examine_workload(workload, arguments)


def examine_workload(workload: str, arguments: Any) -> None:
    number = NUM_PROGRAMS[workload] // (QUICK_SHARE if arguments.quick else 1)
    stem = f"quire_policy-{workload}"
    played = [one for one in arguments.policies if one != "atlas" or workload not in OF_ONE_THREAD]
    earlier: list[Row] = []
    if arguments.keep:
        earlier = earlier_rows(arguments.out / f"autellix-{stem}.json", number, played)
    rows: list[Row] = []
    ratios: list[Row] = []
    shown: list[Row] = []
    here = {"commit": commit()}  # rows of several runs may stand in one file
    for load in arguments.loads:
        found = []
        for seed in arguments.seeds:
            trace = Study(workload, number, seed=seed, engines=ENGINE, load=load).settled()
            key = {"workload": workload, "load": load, "seed": seed}
            own: list[Row] = [{**here, **key, "policy": one, **row(trace, one)} for one in played]
            own += [one for one in earlier if (one["load"], one["seed"]) == (load, seed)]
            rows += own
            found.append(compare(own))
            ratios.append({**key, **found[-1]})
        shown += over_seeds(load, found)
    policies = [one for one in SIMULATED_POLICIES if any(line["policy"] == one for line in rows)]
    figures = medians(rows, policies, arguments.loads)
    print_table(f"{workload}, {number} programs, identical steps", figures)
    print_table(f"{workload}: quire over others, median and worst of seeds", shown)
    title = f"{workload}, {number} programs, {len(arguments.seeds)} seeds"
    draw(arguments.out / f"autellix-{stem}.png", title, figures, policies)
    emit(
        f"autellix/{stem}",
        arguments.out,
        num_programs=number,
        rows=rows,
        ratios=ratios,
        medians=figures,
        over_seeds=shown,
    )


def earlier_rows(path: Path, num_programs: int, played: Sequence[str]) -> list[Row]:
    """Return the rows in ``path`` of policies that are not in ``played``."""
    if not path.exists():
        raise SystemExit(f"{path} does not exist: run without --keep first")
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["num_programs"] != num_programs:
        raise SystemExit(f"{path} is of {found['num_programs']} programs: run without --keep")
    here = {"commit": found["commit"]}
    return [here | one for one in found["rows"] if one["policy"] not in played]


if __name__ == "__main__":
    main()
