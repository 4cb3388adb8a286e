"""Compares disaggregation with data parallel engines, with the lengths of ShareGPT (Microserving,
Fig. 10), in virtual time.

    python benchmarks/microserving/figure10.py [--requests 300] [--rates 2 4 8 12] [--quick]

Stated engines (``stated``) get prompts of 200 and answers of 260 tokens on average, log-normal
(sigma 1: the paper gives the means alone). The paper's is a negative result: prefill is too little
to fill an engine of its own. Its curve of vLLM has no counterpart: what vLLM's passes cost on an
A100 is in no table of the paper. Engines that compute chunks beside decodes, as vLLM does, are here
with the stated costs.
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

RATES, QUICK_RATES = (2.0, 4.0, 8.0, 12.0), (4.0,)

CONTENDERS = (
    Contender("DP", "data_parallel"),
    Contender("1P1D", "disaggregated", prefill=PIECES),
    Contender("1P1D-balance 0.2", "balanced", {"ratio": 0.2}, prefill=PIECES),
    Contender("1P2D", "disaggregated", num_nodes=3, prefill=PIECES),
    Contender("quire", "quire"),
    Contender("DP, chunked", "data_parallel", prefill=CHUNKED),
    Contender("quire, chunked", "quire", prefill=CHUNKED),
)
SIGMA = 1.0


def main() -> None:
    arguments = options(__doc__, CONTENDERS).parse_args()
    prompts, answers = (Lengths(mean, SIGMA, "lognormal") for mean in (200, 260))
    rates = arguments.rates or (QUICK_RATES if arguments.quick else RATES)
    every = curves(arguments, chosen(CONTENDERS, arguments), rates, prompts, answers)
    rows = medians(every)
    ratios = {
        name: [
            one
            for figure in ("TPOT ms", "JCT s", "JCT p99 s")
            for one in over(rows, figure, name, "DP")
        ]
        for name in ("1P1D", "1P1D-balance 0.2", "1P2D", "quire")
    }
    print_table("Lengths of ShareGPT", rows)
    emit(
        "microserving/figure10",
        arguments.out,
        chunk_steps=arguments.chunk_steps,
        results=rows,
        every=every,
        over_dp=ratios,
    )
    draw_lines(
        arguments.out / "microserving-figure10.png",
        "Fig. 10: 200 tokens in, 260 out, in virtual time",
        "requests a second and engine",
        panels(rows, ALL_FIGURES),
    )


if __name__ == "__main__":
    main()
