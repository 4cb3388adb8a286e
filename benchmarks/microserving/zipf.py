"""Plays prompts with popular beginnings over several engines, in virtual time.

    python benchmarks/microserving/zipf.py [--nodes 8] [--prefixes 64] [--requests 600] [--quick]

Stated engines (``stated``), with chunks beside decodes as Quire's own, get prompts that begin with
one of many texts of 4000 tokens, the i-th in proportion to 1/i, with 200 tokens of their own and an
answer of 100. All texts together do not fit into one cache. Going to the pages alone overloads
who has the popular ones; going to who has least to do computes the same text again and again.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.microserving.stated import CHUNKED
from benchmarks.microserving.virtual import (
    ALL_FIGURES,
    Contender,
    curves,
    medians,
    options,
    over,
    panels,
)
from benchmarks.plots import draw_lines
from benchmarks.report import emit, print_table
from quire.cluster.simulation import Lengths

RATES, QUICK_RATES = (3.0, 5.0, 7.0), (5.0,)
PREFIX_TOKENS = 4000
STRATEGIES = {
    "affinity": ("cache_aware", {"max_extra": 1_000_000}),
    "cache_aware": ("cache_aware", {}),
    "least_used": ("least_used", {}),
    "data_parallel": ("data_parallel", {}),
    "quire": ("quire", {}),
}


def main() -> None:
    made = options(__doc__)
    made.add_argument("--nodes", type=int, default=8, help="default: %(default)s")
    made.add_argument("--prefixes", type=int, default=64, help="default: %(default)s")
    made.add_argument("--only", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    arguments = made.parse_args()
    contenders = [
        Contender(name, *STRATEGIES[name], num_nodes=arguments.nodes, prefill=CHUNKED)
        for name in arguments.only
    ]
    every = curves(
        arguments,
        contenders,
        arguments.rates or (QUICK_RATES if arguments.quick else RATES),
        Lengths(200, 20),
        Lengths(100, 5),
        num_prefixes=arguments.prefixes,
        prefix_tokens=PREFIX_TOKENS,
    )
    rows = medians(every)
    ratios = [
        {"of": name, **one}
        for name in arguments.only
        for one in over(rows, "TTFT p99 s", name, "quire")
        if name != "quire"
    ]
    print_table("Prompts with popular beginnings", rows)
    print_table("P99 of the first token, over that of quire", ratios)
    emit(
        "microserving/zipf",
        arguments.out,
        num_nodes=arguments.nodes,
        num_prefixes=arguments.prefixes,
        prefix_tokens=PREFIX_TOKENS,
        results=rows,
        every=every,
        over_quire=ratios,
    )
    draw_lines(
        arguments.out / "microserving-zipf.png",
        f"{arguments.prefixes} beginnings of {PREFIX_TOKENS} tokens (Zipf), {arguments.nodes} "
        "engines in virtual time",
        "requests a second and engine",
        panels(rows, ALL_FIGURES),
    )


if __name__ == "__main__":
    main()
