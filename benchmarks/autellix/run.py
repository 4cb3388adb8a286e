"""Produces all figures of Autellix's evaluation with one command; each script draws its own.

    python benchmarks/autellix/run.py [--only curves balancers] [--quick] [--jobs 2]

Everything but ``bulk``, ``swaps`` and ``validate`` plays programs in virtual time. The JSON lines
go to stdout, and with the figures to ``--out``. ``--quick`` is meant for ten minutes on two cores.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.scripts import Script, run_scripts, scripts_parser

SCRIPTS = {
    "curves": Script("Figs. 12 and 13", ("jobs",)),
    "breakdown": Script("Figs. 4 to 7, and 17", ("jobs",)),
    "balancers": Script("Fig. 14", ("jobs",)),
    "replicas": Script("Fig. 15", ("jobs",)),
    "burst": Script("Fig. 16", ("jobs",), ("--policies", "fcfs", "plas", "quire")),
    "policies": Script("Fig. 18", (), ("--workloads", "sharegpt", "--loads", "1.5")),
    "levels": Script("the queues of Fig. 10", (), ("--workloads", "sharegpt")),
    "admission": Script("memory: more agents than fit", (), ("--over", "1", "2")),
    "validate": Script("the simulator against the real engine"),
    "bulk": Script("Fig. 19", ("rounds",)),
    "swapped_curves": Script("Fig. 19: throughput", ("jobs",), ("--workloads", "sharegpt")),
    "swaps": Script("what swaps cost control and agents", ("rounds",), (), "control"),
}


def main() -> None:
    made = scripts_parser(__doc__, SCRIPTS)
    made.add_argument("--jobs", type=int, help="processes at a time (default: one for each core)")
    made.add_argument("--rounds", type=int, help="of what is measured (default: 7)")
    run_scripts(Path(__file__).resolve().parent, SCRIPTS, made.parse_args())


if __name__ == "__main__":
    main()
