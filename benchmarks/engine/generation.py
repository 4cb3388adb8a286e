"""Measures decode steps and tokens per second next to vLLM, openvino-genai, transformers and
llama.cpp.

    python benchmarks/engine/generation.py [--models tiny small 1b] [--batches 1 8 32] [--quick]

Random Llama checkpoints (tiny: 6M parameters, small: 125M, 1b: 1.1B) in bf16, greedy, prompts of
128 tokens, 64 tokens of output, all requests at once. All contenders stay loaded in processes of
their own and take turns. Two figures are computed from each generation: the decode step, while the
whole batch decodes, and the output tokens divided by the time from the first request to the last
token, prefill included.

The limit of a step is the larger of reading (weights once, K and V of each request) and
multiplying, for the contender's own format of weights; that of a generation is the prompts'
operations plus a step for every further token. Both rates are measured in turn with the contenders,
reading by size, because a small model stays in a cache; a share is of the best that was measured.
``at_most``: the speed-up over the best peer that a system with bf16 weights would have at the
limit.

``quire-int8``, whose weights have 8 bits, is compared with llama.cpp in Q8_0 (8 bits) and Q4_0 (4
bits), which read the same weights, and with nobody else. Each model has a result of its own; quote
ratios, not milliseconds.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.checkpoints import SHAPES
from benchmarks.generation_rounds import RoundOutcome, Workload, run_workloads
from benchmarks.machine_limits import Limits
from benchmarks.options import add_contenders, parser, rounds_of
from benchmarks.peers.catalog import available
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table, processor
from benchmarks.step_limits import BF16, WeightFormat, format_of, generation_limit_s, step_limit_s

PROMPT, OUTPUT = 128, 64


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure of a generation, named as in ``RoundOutcome.figures``."""

    name: str
    title: str
    unit: str
    scale: float
    larger_is_better: bool


STEP = Quantity("step_s", "one decode step", "ms", 1e3, larger_is_better=False)
RATE = Quantity(
    "tokens_per_s", "output tokens per second with prefill", "tok/s", 1, larger_is_better=True
)


def limit_s(outcome: RoundOutcome, quantity: Quantity, weights: WeightFormat) -> float:
    """Return the least time for a step, or for the whole generation, in seconds."""
    shape, count = SHAPES[outcome.model], outcome.workload.num_requests
    if quantity is STEP:
        return step_limit_s(shape, count, PROMPT + OUTPUT // 2, outcome.limits, weights)
    return generation_limit_s(shape, count, PROMPT, OUTPUT, outcome.limits, weights)


def row(outcome: RoundOutcome, quantity: Quantity) -> dict[str, Any]:
    """Return one line of the report: every contender's figure, ratios over the best peer,
    shares."""
    found = outcome.figures(quantity.name)
    seconds = "step_s" if quantity is STEP else "total_s"
    shares = {
        who: outcome.share(who, seconds, limit_s(outcome, quantity, format_of(who)))
        for who in found
    }
    limit = limit_s(outcome, quantity, BF16)
    line: dict[str, Any] = {
        "model": outcome.model,
        "num_requests": outcome.workload.num_requests,
        quantity.unit: {who: one.scaled(quantity.scale).rounded() for who, one in found.items()},
        "limit_s": float(f"{limit:.4g}"),
        "share_of_limit": {who: one.rounded(3) for who, one in shares.items()},
    }
    better = quantity.larger_is_better
    best = outcome.best_peer(quantity.name, larger_is_better=better)
    if best is not None:
        line["best_peer"] = best
        line["at_most"] = float(f"{1 / outcome.share(best, seconds, limit).median:.3g}")
    line["ahead_of"] = {
        who: {peer: one.rounded(3) for peer, one in ratios.items()}
        for who, ratios in outcome.comparisons(quantity.name, larger_is_better=better).items()
    }
    return line


def shown(line: dict[str, Any], quantity: Quantity) -> list[dict[str, object]]:
    """Return a row for each contender, and one for the limit."""
    ahead = line["ahead_of"]
    rows: list[dict[str, object]] = [
        {
            "model": f"{line['model']}, {line['num_requests']}",
            "contender": who,
            quantity.unit: f"{one['median']:.4g}",
            "over": ", ".join(
                f"{peer} {one['median']}x" for peer, one in ahead.get(who, {}).items()
            ),
            "share of the limit": line["share_of_limit"][who]["median"],
        }
        for who, one in line[quantity.unit].items()
    ]
    at_most = f"{line['best_peer']} {line['at_most']}x" if "best_peer" in line else ""
    return [
        *rows,
        dict(rows[0], contender="limit")
        | {quantity.unit: "", "over": at_most, "share of the limit": 1},
    ]


def draw(outcomes: list[RoundOutcome], quantity: Quantity, path: Path) -> None:
    names = list(dict.fromkeys(name for one in outcomes for name in one.reports))
    found = [one.figures(quantity.name) for one in outcomes]
    draw_bars(
        path,
        f"{quantity.title}, bf16, greedy",
        f"{quantity.unit} (median, 95 % interval)",
        [f"{one.model}, {one.workload.num_requests}" for one in outcomes],
        {
            name: [one[name].scaled(quantity.scale) if name in one else None for one in found]
            for name in names
        },
        logarithmic=True,
    )


def report(model: str, outcomes: list[RoundOutcome], out: Path) -> None:
    """Print the tables and write the result of one model, as soon as it is measured."""
    results: dict[str, Any] = {}
    for quantity in (STEP, RATE):
        lines = [row(one, quantity) for one in outcomes]
        for line in lines:
            print_table(f"{quantity.title}, {quantity.unit}, {processor()}", shown(line, quantity))
        results[quantity.name] = lines
    limits = Limits.best_of(one.limits for one in outcomes)
    emit(
        f"engine/generation-{model}",
        out,
        gb_per_s=round(limits.memory_bytes_per_s / 1e9, 1),
        gflops={kind: round(rate / 1e9) for kind, rate in limits.flops.items()},
        memory_mib={
            one.workload.num_requests: {who: size >> 20 for who, size in one.pss_bytes.items()}
            for one in outcomes
        },
        **results,
    )


def main() -> None:
    made = parser(__doc__, models=("tiny", "small"))
    add_contenders(made)
    made.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32], help="requests at once")
    arguments = made.parse_args()
    outcomes: list[RoundOutcome] = []
    for model in arguments.models:
        launches = available(arguments.contenders, model, arguments.cache)
        workloads = [Workload(count, PROMPT, OUTPUT) for count in arguments.batches]
        found = run_workloads(
            model, launches, workloads, rounds_of(arguments), arguments.num_threads
        )
        report(model, found, arguments.out)
        outcomes += found
    for quantity in (STEP, RATE):
        draw(outcomes, quantity, arguments.out / f"engine-generation-{quantity.name}.png")


if __name__ == "__main__":
    main()
