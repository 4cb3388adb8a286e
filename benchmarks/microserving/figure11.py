"""Compares disaggregation with data parallel engines, with long prompts (Microserving, Fig. 11), in
virtual time.

    python benchmarks/microserving/figure11.py [--requests 300] [--rates 1 1.5 2 2.5] [--quick]

Two stated engines (``stated``) get prompts of 3000 and answers of 100 tokens, sigma 5. Under data
parallel the paper's engine computes a prompt at once, while its decodes wait; disaggregated, it
computes pieces beside them. To tell a strategy from its engine, both kinds run over both engines,
and then over Quire's own, which compute chunks beside decodes.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.microserving.stated import CHUNKED, PIECES
from benchmarks.microserving.virtual import (
    ALL_FIGURES,
    Contender,
    chosen,
    curves,
    medians,
    options,
    over,
    panels,
)
from benchmarks.plots import draw_lines
from benchmarks.report import emit, print_table
from quire.cluster.simulation import Lengths

RATES, QUICK_RATES = (1.0, 1.5, 2.0, 2.5), (2.0,)

CONTENDERS = (
    Contender("DP", "data_parallel"),
    Contender("1P1D", "disaggregated", prefill=PIECES),
    Contender("1P1D-balance 0.2", "balanced", {"ratio": 0.2}, prefill=PIECES),
    Contender("1P1D-balance by load", "balanced", {"ratio": -1.0}, prefill=PIECES),
    Contender("1P1D-balance by load, whole", "balanced", {"ratio": -1.0}),
    Contender("quire", "quire"),
    Contender("DP, pieces", "data_parallel", prefill=PIECES),
    Contender("quire, pieces", "quire", prefill=PIECES),
    Contender("DP, chunked", "data_parallel", prefill=CHUNKED),
    Contender("1P1D-balance by load, chunked", "balanced", {"ratio": -1.0}, prefill=CHUNKED),
    Contender("quire, chunked", "quire", prefill=CHUNKED),
)

BASES = ("DP", "DP, pieces", "DP, chunked")
RATIOS_OF = (
    "1P1D",
    "1P1D-balance 0.2",
    "1P1D-balance by load",
    "quire, pieces",
    "quire, chunked",
)


def main() -> None:
    arguments = options(__doc__, CONTENDERS).parse_args()
    prompts, answers = Lengths(3000, 5), Lengths(100, 5)
    rates = arguments.rates or (QUICK_RATES if arguments.quick else RATES)
    every = curves(arguments, chosen(CONTENDERS, arguments), rates, prompts, answers)
    rows = medians(every)
    ratios = {
        name: {
            base: [
                one for figure in ("JCT s", "JCT p99 s") for one in over(rows, figure, name, base)
            ]
            for base in BASES
        }
        for name in RATIOS_OF
    }
    print_table("Prompts of 3000 tokens, answers of 100", rows)
    emit(
        "microserving/figure11",
        arguments.out,
        chunk_steps=arguments.chunk_steps,
        results=rows,
        every=every,
        ratios=ratios,
    )
    draw_lines(
        arguments.out / "microserving-figure11.png",
        "Fig. 11: 3000 tokens in, 100 out, two engines in virtual time",
        "requests a second and engine",
        panels(rows, ALL_FIGURES),
    )


if __name__ == "__main__":
    main()
