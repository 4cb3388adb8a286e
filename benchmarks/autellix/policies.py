"""Compares policies, and bounds that no node can reach, on simulated engines with identical steps
(Autellix, Fig. 18).

    python benchmarks/autellix/policies.py [--quick] [--loads 0.9 1.5] [--workloads sharegpt lats]

``srpt`` knows the work that each program has left, ``gittins`` the workload's distribution of it.
``simulated.py`` states the trace and the engine. Deterministic: a second run gives the same rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.autellix.simulated import NUM_PROGRAMS, row, study
from benchmarks.options import plain_parser
from benchmarks.report import emit, print_table
from quire.simulation.studies import SIMULATED_POLICIES


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--workloads", nargs="+", choices=NUM_PROGRAMS, default=[*NUM_PROGRAMS])
    made.add_argument("--loads", nargs="+", type=float, default=[0.9, 1.5])
    made.add_argument("--policies", nargs="+", choices=SIMULATED_POLICIES,
                      default=[*SIMULATED_POLICIES])  # fmt: skip
    made.add_argument("--seed", type=int, default=1)
    arguments = made.parse_args()
    rows = []
    for workload in arguments.workloads:
        for load in arguments.loads:
            trace = study(workload, load, arguments.seed, quick=arguments.quick)
            rows += [
                {"workload": workload, "load": load, "policy": policy, **row(trace, policy)}
                for policy in arguments.policies
            ]
    print_table("identical steps", rows)
    emit("autellix/policies", arguments.out, seed=arguments.seed, rows=rows)


if __name__ == "__main__":
    main()
