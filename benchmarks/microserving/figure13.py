"""Shows how much of a prompt the generating engine should compute (Microserving, Fig. 13), in
virtual time.

    python benchmarks/microserving/figure13.py [--requests 300] [--lengths 3000 5000] [--quick]

One stated engine (``stated``) computes the beginning of each prompt, another one the last 10, 20 or
30 % and the answer of 100 tokens; or the share that the load asks for.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.microserving.stated import PIECES
from benchmarks.microserving.virtual import (
    Contender,
    Row,
    curves,
    medians,
    options,
    panels,
)
from benchmarks.plots import draw_lines
from benchmarks.report import emit, print_table
from quire.cluster.simulation import Lengths

LENGTHS, QUICK_LENGTHS = (3000, 5000), (3000,)
RATES, QUICK_RATES = (0.5, 1.0, 1.5, 2.0), (1.0,)

BY_LOAD = "by load"
CONTENDERS = (
    *(Contender(f"{one}", "balanced", {"ratio": one}, prefill=PIECES) for one in (0.1, 0.2, 0.3)),
    Contender(BY_LOAD, "balanced", {"ratio": -1.0}, prefill=PIECES),
)
FIGURES = (("JCT s", "mean JCT, s"), ("JCT p99 s", "P99 JCT, s"))


def against_best(rows: list[Row]) -> list[Row]:
    """Return the latency of the load's own choice over that of the best fixed ratio, for each
    length and rate."""
    found = []
    for length, rate in dict.fromkeys((row["prompt"], row["rate"]) for row in rows):
        here = {
            row["contender"]: row for row in rows if (row["prompt"], row["rate"]) == (length, rate)
        }
        for figure, _ in FIGURES:
            fixed = {name: row[figure] for name, row in here.items() if name != BY_LOAD}
            best = min(fixed, key=lambda name: fixed[name])
            found.append(
                {
                    "prompt": length,
                    "rate": rate,
                    "figure": figure,
                    "best": best,
                    "0.3 over 0.1": round(fixed["0.3"] / fixed["0.1"], 3),
                    "by load over best": round(here[BY_LOAD][figure] / fixed[best], 3),
                }
            )
    return found


def main() -> None:
    made = options(__doc__)
    made.add_argument("--lengths", nargs="+", type=int, help="of prompts, in tokens")
    arguments = made.parse_args()
    rates = arguments.rates or (QUICK_RATES if arguments.quick else RATES)
    every = [
        row
        for length in arguments.lengths or (QUICK_LENGTHS if arguments.quick else LENGTHS)
        for row in curves(
            arguments,
            CONTENDERS,
            rates,
            Lengths(length, 5),
            Lengths(100, 5),
            labels={"prompt": length},
        )
    ]
    rows = medians(every)
    compared = against_best(rows)
    print_table("Shares of prompts", rows)
    print_table("By load against the best fixed share", compared)
    emit("microserving/figure13", arguments.out, results=rows, every=every, against_best=compared)
    draw_lines(
        arguments.out / "microserving-figure13.png",
        "Fig. 13: shares of the prompt that the generating engine computes, in virtual time",
        "requests a second and engine",
        [
            panel
            for length in dict.fromkeys(row["prompt"] for row in rows)
            for panel in panels(
                rows,
                [(name, f"{label}, {length} tokens") for name, label in FIGURES],
                prompt=length,
            )
        ],
    )


if __name__ == "__main__":
    main()
