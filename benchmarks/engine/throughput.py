"""Tokens per second with prefill, next to vLLM, openvino-genai and transformers in the same run.

    python benchmarks/engine/throughput.py [--models tiny small 1b] [--batches 1 8 32] [--quick]

Offline: all requests arrive at once; prompts of 128 tokens, 64 tokens of output, greedy, bf16. The
figure is the number of output tokens over the time from the first request to the last token.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.generation_rounds import Outcome, Workload, run_workloads
from benchmarks.options import add_contenders, parser, rounds_of
from benchmarks.peers.catalog import OURS, available
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table

PROMPT, OUTPUT = 128, 64
FIGURE = "tokens_per_s"


def row(outcome: Outcome) -> dict[str, Any]:
    rates = outcome.figures(FIGURE)
    best = outcome.best_peer(FIGURE, larger_is_better=True)
    ahead = {}
    if best is not None:
        ahead = {
            name: outcome.speedup(name, best, FIGURE, larger_is_better=True).rounded(3)
            for name in OURS
            if name in rates
        }
    return {
        "model": outcome.model,
        "num_requests": outcome.workload.num_requests,
        "tokens_per_s": {name: one.rounded() for name, one in rates.items()},
        "memory_mib": {name: size >> 20 for name, size in outcome.pss_bytes.items()},
        "best_peer": best,
        "ahead_of_best_peer": ahead,
    }


def shown(one: dict[str, Any]) -> dict[str, object]:
    cells: dict[str, object] = {"model": one["model"], "requests": one["num_requests"]}
    for name, rate in one["tokens_per_s"].items():
        cells[f"{name} tok/s"] = f"{rate['median']:.4g}"
    for name, ratio in one["ahead_of_best_peer"].items():
        cells[f"{name} / {one['best_peer']}"] = f"{ratio['median']}x"
    return cells


def main() -> None:
    made = parser(__doc__, models=("tiny", "small"))
    add_contenders(made, ("quire", "quire-fine", "quire-torch", "vllm", "openvino", "transformers"))
    made.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32], help="requests at once")
    arguments = made.parse_args()
    outcomes: list[Outcome] = []
    for model in arguments.models:
        launches = available(arguments.contenders, model, arguments.cache)
        workloads = [Workload(count, PROMPT, OUTPUT) for count in arguments.batches]
        outcomes += run_workloads(
            model, launches, workloads, rounds_of(arguments), arguments.num_threads
        )
    rows = [row(one) for one in outcomes]
    print_table("output tokens per second, with prefill", [shown(one) for one in rows])
    names = list(dict.fromkeys(name for one in outcomes for name in one.reports))
    rates = [one.figures(FIGURE) for one in outcomes]
    draw_bars(
        arguments.out / "engine-throughput.png",
        "output tokens per second with prefill",
        "tokens/s (median, 95 % interval)",
        [f"{one.model}, {one.workload.num_requests}" for one in outcomes],
        {name: [one.get(name) for one in rates] for name in names},
        logarithmic=True,
    )
    emit("engine/throughput", arguments.out, results=rows)


if __name__ == "__main__":
    main()
