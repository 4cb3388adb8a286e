"""Varies the queues of ``plas`` and ``atlas``: thresholds, quanta, beta and the share of promoted
calls.

    python benchmarks/autellix/levels.py [--quick] [--workloads sharegpt lats] [--load 1.5]

One figure at a time is another one than the default. ShareGPT runs under ``plas``, LATS under
``atlas``. Chosen before the first run: the configuration with the smallest mean latency of a token,
as a geometric mean over both workloads, is the best; less than 2 % better than the default is no
reason to change it. ``simulated.py`` states the trace and the engine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.autellix.simulated import NUM_PROGRAMS, row, study
from benchmarks.options import plain_parser
from benchmarks.report import emit, print_table
from quire.core.scheduler_config import LevelsConfig

POLICY = {"sharegpt": "plas", "lats": "atlas"}
BASE = LevelsConfig(
    thresholds=(64, 256, 1024, 4096, 16384), quanta=None, beta=4.0, promoted_share=0.1
)
"""Written out, so that the comparison stays the same when defaults change."""

CONFIGURATIONS: Mapping[str, LevelsConfig] = {
    "base": BASE,
    "thresholds 2 to 64": replace(BASE, thresholds=(2, 4, 8, 16, 32, 64)),
    "thresholds 64 to 16,384, doubled": replace(
        BASE, thresholds=tuple(64 * 2**n for n in range(9))
    ),
    "thresholds 256 to 65,536": replace(BASE, thresholds=(256, 1024, 4096, 16384, 65536)),
    "quanta of 64": replace(BASE, quanta=(64,) * 5),
    "quanta of 1,024": replace(BASE, quanta=(1024,) * 5),
    "beta 1": replace(BASE, beta=1.0),
    "beta 16": replace(BASE, beta=16.0),
    "never promoted": replace(BASE, beta=None),
    "promoted 0.3": replace(BASE, promoted_share=0.3),
    "promoted 1.0": replace(BASE, promoted_share=1.0),
}


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--workloads", nargs="+", choices=NUM_PROGRAMS, default=[*NUM_PROGRAMS])
    made.add_argument("--load", type=float, default=1.5)
    made.add_argument("--seed", type=int, default=1)
    arguments = made.parse_args()
    rows = []
    for workload in arguments.workloads:
        trace = study(workload, arguments.load, arguments.seed, quick=arguments.quick)
        policy = POLICY[workload]
        rows += [
            {"workload": workload, "queues": name, **row(trace, policy, levels)}
            for name, levels in CONFIGURATIONS.items()
        ]
    print_table(f"queues at load {arguments.load:g}", rows)
    emit("autellix/levels", arguments.out, seed=arguments.seed, load=arguments.load, rows=rows)


if __name__ == "__main__":
    main()
