"""Moves a context to another engine, and compares the time with computing it again there
(Microserving, Fig. 12), in virtual time.

    python benchmarks/microserving/figure12.py [--contexts 500 2500 4500] [--page-sizes 64 16]

One stated engine (``stated``) has a context in its cache; requests with this context and 500 new
tokens go to other engines, one after another and each to another one. Migrated: the three calls
bring K and V of the context. Recomputed: the engine computes everything. Only full pages are in a
prefix cache; the tokens behind the last one are computed by the *sender*, before it sends them, or
by the *receiver* with the new ones, as the shipped strategy ``migrating`` has it. Engines compute a
prompt as one message (*whole*) or in pieces of 512 tokens (*pieces*). ``migration.py`` measures the
same with two real nodes.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measurement import Figure
from benchmarks.microserving.stated import CALL_S, NUM_NEW, PIECES, WHOLE, Prefill, a100, link
from benchmarks.microserving.virtual import Row
from benchmarks.options import plain_parser
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table
from quire.cluster.routing.strategy import StrategySource
from quire.cluster.simulation import ClusterStudy, Lengths, RequestLoad, examine_cluster

CONTEXTS, QUICK_CONTEXTS = (500, 2500, 4500), (500,)
PAPER = {500: 1.7, 2500: 3.5, 4500: 5.0}
"""Read from the paper's bars: recomputed over migrated."""

NUM_ENGINES = 5
KINDS = {"whole": WHOLE, "pieces": PIECES}
PAGE_SIZES = (64, 16)
"""That of the stated engine, and the default of ``quire serve``."""

TAILS = ("sender", "receiver")
"""Who computes the tokens of the context behind the last full page."""

RATE = 0.1
"""Requests a second: none waits for another one."""

STRATEGY = """
from quire.cluster.strategies.handing_over import handed_over


class OneAfterAnother:
    def __init__(self, num_sent):
        self.num_sent, self.num = num_sent, 0

    async def __call__(self, request, engines):
        first, chosen = engines[0], engines[self.num % len(engines)]
        self.num += 1
        if chosen is first or not self.num_sent:
            return await chosen.send(request)
        return await handed_over(request, first, chosen, self.num_sent)
"""


def ttft_s(num_context: int, prefill: Prefill, page_size: int, num_sent: int) -> float:
    """Return the mean time to the first token in seconds, over all engines but the first, which
    computes the context and sends ``num_sent`` tokens of it to each of the others."""
    load = RequestLoad(
        NUM_ENGINES,
        RATE,
        Lengths(NUM_NEW),
        Lengths(2),
        num_prefixes=1,
        prefix_tokens=num_context,
    )
    study = ClusterStudy(
        load=load,
        num_nodes=NUM_ENGINES,
        engine=replace(a100(prefill), page_size=page_size),
        scheduler=prefill.scheduler(),
        link=link(),
        call_s=CALL_S,
    )
    source = StrategySource("OneAfterAnother", text=STRATEGY, options={"num_sent": num_sent})
    found = examine_cluster(study, source)
    assert found.summary.num_failed == 0, [one.error for one in found.outcomes]
    assert (found.summary.num_sent_bytes > 0) is (num_sent > 0)
    return mean(one.ttft_s for one in found.outcomes[1:])


def measure(num_context: int, kind: str, page_size: int, tail: str) -> Row:
    num_cached = num_context // page_size * page_size
    num_sent = num_context if tail == "sender" else num_cached
    migrated_s, recomputed_s = (
        ttft_s(num_context, KINDS[kind], page_size, num) for num in (num_sent, 0)
    )
    return {
        "context": num_context,
        "new": NUM_NEW,
        "engines": kind,
        "page": page_size,
        "tail": tail,
        "tail tokens": num_context - num_cached,
        "migrated s": round(migrated_s, 4),
        "recomputed s": round(recomputed_s, 4),
        "recomputed over migrated": round(recomputed_s / migrated_s, 2),
        "paper": PAPER.get(num_context),
    }


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--contexts", nargs="+", type=int, help=f"tokens (default: {CONTEXTS})")
    made.add_argument("--page-sizes", nargs="+", type=int, default=PAGE_SIZES, help="tokens")
    arguments = made.parse_args()
    contexts = arguments.contexts or (QUICK_CONTEXTS if arguments.quick else CONTEXTS)
    rows = [measure(*one) for one in product(contexts, KINDS, arguments.page_sizes, TAILS)]
    print_table("A context on another engine, in virtual time", rows)
    emit("microserving/figure12", arguments.out, results=rows)

    def bar(row: Row) -> Figure:
        value = row["recomputed over migrated"]
        return Figure(value, value, value, 1)

    draw_bars(
        arguments.out / "microserving-figure12.png",
        f"Fig. 12: a context moves to another engine, with {NUM_NEW} new tokens, in virtual time",
        "first token: recomputed over migrated",
        [f"{context} tokens" for context in contexts],
        {
            f"pages of {page_size}, the {tail} computes the tail": [
                bar(row)
                for row in rows
                if (row["engines"], row["page"], row["tail"]) == ("whole", page_size, tail)
            ]
            for page_size, tail in product(arguments.page_sizes, TAILS)
        },
    )


if __name__ == "__main__":
    main()
