"""Time of one decode step, next to vLLM, openvino-genai and transformers in the same run.

    python benchmarks/engine/decode_step.py [--models tiny small 1b] [--batches 1 8 32] [--quick]

Random Llama checkpoints (tiny: 6M parameters, small: 125M, 1b: 1.1B) in bf16, greedy, prompts of
128 tokens, 64 tokens of output. All contenders stay loaded in processes of their own, in turns.
A step is counted from when every request has its first token on, so prefill is not in it. The share
of the limit compares our step with the larger of reading (weights once, K and V of each request) at
the memory's speed and multiplying at the bf16 matrix rate, both measured in the same run; a model
that stays in the processor's caches may exceed it. Quote the ratios, not the milliseconds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.checkpoints import SHAPES, Limits, step_limit_s
from benchmarks.generation_rounds import Outcome, Workload, run_workloads
from benchmarks.machine_limits import limits_of_this_machine
from benchmarks.options import add_contenders, parser, rounds_of
from benchmarks.peers.catalog import OURS, available
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table

PROMPT, OUTPUT = 128, 64


def row(outcome: Outcome, limits: Limits) -> dict[str, Any]:
    """One line of the report: every contender's step, ratios over the best peer, our share."""
    context = PROMPT + OUTPUT // 2
    limit_s = step_limit_s(SHAPES[outcome.model], outcome.workload.num_requests, context, limits)
    steps = outcome.figures("step_s")
    best = outcome.best_peer("step_s", larger_is_better=False)
    ours = [name for name in OURS if name in steps]
    return {
        "model": outcome.model,
        "num_requests": outcome.workload.num_requests,
        "step_ms": {name: one.scaled(1e3).rounded() for name, one in steps.items()},
        "limit_ms": float(f"{1e3 * limit_s:.3g}"),
        "share_of_limit": {name: round(limit_s / steps[name].median, 3) for name in steps},
        "best_peer": best,
        "ahead_of_best_peer": {
            name: outcome.speedup(name, best, "step_s", larger_is_better=False).rounded(3)
            for name in ours
        }
        if best is not None
        else {},
    }


def shown(one: dict[str, Any]) -> dict[str, object]:
    cells: dict[str, object] = {"model": one["model"], "requests": one["num_requests"]}
    cells |= {f"{name} ms": f"{step['median']:.3g}" for name, step in one["step_ms"].items()}
    cells["limit ms"] = one["limit_ms"]
    for name, ratio in one["ahead_of_best_peer"].items():
        cells[f"{name} / {one['best_peer']}"] = f"{ratio['median']}x"
    return cells


def main() -> None:
    made = parser(__doc__, models=("tiny", "small"))
    add_contenders(made)
    made.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32], help="requests at once")
    arguments = made.parse_args()
    limits = limits_of_this_machine()
    rows = []
    outcomes: list[Outcome] = []
    for model in arguments.models:
        launches = available(arguments.contenders, model, arguments.cache)
        workloads = [Workload(count, PROMPT, OUTPUT) for count in arguments.batches]
        found = run_workloads(
            model, launches, workloads, rounds_of(arguments), arguments.num_threads
        )
        outcomes += found
        rows += [row(one, limits) for one in found]
    print_table("one decode step", [shown(one) for one in rows])
    names = list(dict.fromkeys(name for one in outcomes for name in one.reports))
    steps = [one.figures("step_s") for one in outcomes]
    draw_bars(
        arguments.out / "engine-decode_step.png",
        "one decode step, bf16, greedy",
        "ms (median, 95 % interval)",
        [f"{one.model}, {one.workload.num_requests}" for one in outcomes],
        {name: [one[name].scaled(1e3) if name in one else None for one in steps] for name in names},
        logarithmic=True,
    )
    emit(
        "engine/decode_step",
        arguments.out,
        limits={
            "gb_per_s": round(limits.bytes_per_s / 1e9, 1),
            "gflops": round(limits.flops / 1e9),
        },
        results=rows,
    )


if __name__ == "__main__":
    main()
