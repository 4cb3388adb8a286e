"""Produces the figures of LLM Microserving's evaluation with one command; each script draws its
own.

    python benchmarks/microserving/run.py [--only transfer migration] [--quick]

Options are passed to the scripts that know them. The JSON lines go to stdout, and with the figures
to ``--out``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.scripts import Script, run_scripts, scripts_parser

SCRIPTS = {
    "transfer": Script("Table 3", ("rounds", "models"), ("--dtypes", "float32")),
    "hidden": Script("Table 3, hidden", ("rounds", "models")),
    "migration": Script("Fig. 12", ("rounds", "models")),
    "moved_decode": Script("a running decode moved", ("rounds", "models")),
    "router_cost": Script("the router's cost", ("rounds", "models"), ("--requests", "8")),
    "two_nodes": Script("the virtual cluster against two real nodes", ("rounds",)),
    "figure10": Script("Fig. 10, in virtual time"),
    "figure11": Script("Fig. 11, in virtual time"),
    "figure12": Script("Fig. 12, in virtual time"),
    "figure13": Script("Fig. 13, in virtual time"),
    "zipf": Script("prompts with popular beginnings, in virtual time"),
}


def main() -> None:
    made = scripts_parser(__doc__, SCRIPTS)
    made.add_argument(
        "--models", nargs="+", help="for scripts with this option (default: their own)"
    )
    made.add_argument("--rounds", type=int, help="interleaved rounds (default: their own)")
    run_scripts(Path(__file__).resolve().parent, SCRIPTS, made.parse_args())


if __name__ == "__main__":
    main()
