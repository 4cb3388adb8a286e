"""Produces all figures of Pie's evaluation with one command; each script draws its own.

    python benchmarks/pie/run.py [--only agents techniques] [--quick] [--peers vllm]

Options are passed to the scripts that know them. The JSON lines go to stdout, and with the figures
to ``--out``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.scripts import Script, run_scripts, scripts_parser

SCRIPTS = {
    "agents": Script("Fig. 6", ("rounds", "models", "peers"), ("--agents", "4", "--at-once", "2")),
    "optimisations": Script("Fig. 7", ("rounds", "models"), ("--agents", "4", "--at-once", "2")),
    "techniques": Script("Fig. 8", ("rounds",), ("--questions", "3", "--at-once", "2")),
    "launch": Script("Fig. 9", ("rounds",)),
    "calls": Script("Fig. 10", ("rounds",)),
    "tpot": Script("Tables 3 and 4", ("rounds", "models")),
    "dispatch": Script("Table 5", ("rounds", "models")),
}


def main() -> None:
    made = scripts_parser(__doc__, SCRIPTS)
    made.add_argument(
        "--models", nargs="+", help="for scripts with this option (default: their own)"
    )
    made.add_argument("--rounds", type=int, help="interleaved rounds (default: their own)")
    made.add_argument(
        "--peers", nargs="+", help="other servers to run the agents on (default: none)"
    )
    run_scripts(Path(__file__).resolve().parent, SCRIPTS, made.parse_args())


if __name__ == "__main__":
    main()
