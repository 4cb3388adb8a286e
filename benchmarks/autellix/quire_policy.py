"""The policy ``quire`` beside every other one and the bounds, on five workloads at three loads.

    python benchmarks/autellix/quire_policy.py [--quick] [--workloads bfcl] [--loads 0.95]

Engine and messages are those of ``simulated.py``. The number of programs was chosen before the
first run; ``quire`` begins each trace without knowing anything, so what it learns on the way is
part of the figure. ``over_best`` compares its row with the best of the policies that a node can
run, ``over_gittins`` with the bound that knows the workload, both by mean token latency and by mean
response. Deterministic: a second run gives the same rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.autellix.simulated import ENGINE, row
from benchmarks.options import plain_parser
from benchmarks.report import emit, print_table
from quire.simulation.studies import SIMULATED_POLICIES, Study

NUM_PROGRAMS = {"sharegpt": 100, "bfcl": 150, "agents": 80, "lats": 24, "mixed": 90}
QUICK_SHARE = 2
POLICIES = ("quire", "fcfs", "mlfq", "plas", "atlas", "srpt", "gittins")
BOUNDS = ("srpt", "gittins")
MEASURES = ("ms_per_token", "response_s")


def compare(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """One trace: how much worse ``quire`` is than the best other policy, and than ``gittins``."""
    by_policy = {str(one["policy"]): one for one in rows}
    if "quire" not in by_policy:
        return []
    own = by_policy["quire"]
    others = [one for name, one in by_policy.items() if name not in (*BOUNDS, "quire")]
    found: dict[str, object] = {key: own[key] for key in ("workload", "load", "seed")}
    for measure in MEASURES:
        mine = float(str(own[measure]))
        if others:
            best = min(others, key=lambda one: float(str(one[measure])))
            found[f"best_{measure}"] = best["policy"]
            found[f"over_best_{measure}"] = round(mine / float(str(best[measure])), 3)
        if "gittins" in by_policy:
            known = float(str(by_policy["gittins"][measure]))
            found[f"over_gittins_{measure}"] = round(mine / known, 3)
    return [found]


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--workloads", nargs="+", choices=NUM_PROGRAMS, default=[*NUM_PROGRAMS])
    made.add_argument("--loads", nargs="+", type=float, default=[0.8, 0.95, 1.5])
    made.add_argument("--policies", nargs="+", choices=SIMULATED_POLICIES, default=[*POLICIES])
    made.add_argument("--seeds", nargs="+", type=int, default=[1])
    arguments = made.parse_args()
    rows: list[dict[str, object]] = []
    ratios: list[dict[str, object]] = []
    for workload in arguments.workloads:
        number = NUM_PROGRAMS[workload] // (QUICK_SHARE if arguments.quick else 1)
        for load in arguments.loads:
            for seed in arguments.seeds:
                trace = Study(workload, number, seed=seed, engines=ENGINE, load=load).settled()
                key = {"workload": workload, "load": load, "seed": seed}
                played = [{**key, "policy": one, **row(trace, one)} for one in arguments.policies]
                rows += played
                ratios += compare(played)
    print_table("identical steps", rows)
    print_table("quire over others", ratios)
    emit("autellix/quire_policy", arguments.out, rows=rows, ratios=ratios)


if __name__ == "__main__":
    main()
