"""Measures what each degree of control over its decoding costs a program (Pie, Tables 3 and 4).

    python benchmarks/pie/tpot.py [--models small 1b] [--programs 32] [--quick]

Time per output token of 32 programs at once, random Llama checkpoints in bf16, prompts of 128
tokens, 64 tokens of output, greedy, on one node whose engine is a process. The baseline is the same
engine's own loop, driven directly while the node is idle (``engine_tap``). The others run on the
node: ``decode`` (one command for the loop), ``slots`` (the program issues every step, with token
slots on the device), ``sampled`` (the program awaits each token), ``fine`` (it awaits each
distribution and chooses). The breakdown is the difference from one to the next; ``cpu`` is the
processor time of the node's process per step of all programs.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.checkpoints import SHAPES
from benchmarks.measurement import figure, ratio, take_turns
from benchmarks.options import parser, rounds_of
from benchmarks.peers.catalog import model_directory
from benchmarks.pie.loop_node import Ran, loop_node, run_fused, run_loops
from benchmarks.pie.loops import LOOPS
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table

PROMPT, OUTPUT = 128, 64
FUSED = "engine alone"
PAPER = {"1B": "+11.4 %", "8B": "+2.4 %"}
_PARTS = {
    "decode": "scheduling, and crossing to the engine's process",
    "slots": "separate commands for embedding, forward and sampling",
    "sampled": "waiting for each token before the next step is issued",
    "fine": "returning a distribution in place of a token",
}


def measure(model: str, arguments: Any) -> dict[str, list[Ran]]:
    random = np.random.default_rng(0)

    def prompts() -> list[list[int]]:
        size = (arguments.programs, PROMPT)
        made: list[list[int]] = random.integers(3, SHAPES[model].vocab_size, size).tolist()
        return made

    path = model_directory(arguments.cache, model)
    with asyncio.Runner() as runner, ExitStack() as stack:
        serving = loop_node(path, num_threads=arguments.num_threads)
        node, engine = runner.run(serving.__aenter__())
        stack.callback(lambda: runner.run(serving.__aexit__(None, None, None)))
        contenders = {FUSED: lambda: run_fused(engine, prompts(), OUTPUT)}
        for name, loop in LOOPS.items():
            contenders[name] = partial(
                lambda loop: runner.run(run_loops(node, loop, prompts(), OUTPUT)), loop
            )
        return take_turns(
            f"{model}, {arguments.programs} programs", contenders, rounds_of(arguments)
        )


def rows_of(model: str, results: dict[str, list[Ran]]) -> list[dict[str, Any]]:
    rows = []
    before = FUSED
    for name, runs in results.items():
        steps = [run.step_s for run in runs]
        row: dict[str, Any] = {"model": model, "loop": name}
        row["step_ms"] = figure(steps).scaled(1e3).rounded()
        row["over_fused"] = ratio(steps, [run.step_s for run in results[FUSED]]).rounded(3)
        if name != FUSED:
            earlier = [run.step_s for run in results[before]]
            added = figure([one - other for one, other in zip(steps, earlier, strict=True)])
            row["added_ms"] = added.scaled(1e3).rounded(3)
            row["added_by"] = _PARTS[name]
            row["cpu_ms"] = figure([run.cpu_s for run in runs]).scaled(1e3).rounded(3)
            before = name
        rows.append(row)
    return rows


def main() -> None:
    made = parser(__doc__, models=("small",))
    made.add_argument("--programs", type=int, default=32, help="at once (default: %(default)s)")
    arguments = made.parse_args()
    rows = []
    bars = {}
    for model in arguments.models:
        results = measure(model, arguments)
        rows += rows_of(model, results)
        bars[model] = {name: figure([r.step_s for r in runs]) for name, runs in results.items()}
    print_table(
        f"time per output token, {arguments.programs} programs",
        [
            {
                "model": row["model"],
                "loop": row["loop"],
                "ms": f"{row['step_ms']['median']:.4g}",
                "over the engine's loop": f"{row['over_fused']['median']}x",
                "added ms": row.get("added_ms", {}).get("median", ""),
                "added by": row.get("added_by", ""),
                "cpu ms": row.get("cpu_ms", {}).get("median", ""),
            }
            for row in rows
        ],
    )
    draw_bars(
        arguments.out / "pie-tpot.png",
        f"time per output token, {arguments.programs} programs",
        "ms (median, 95 % interval)",
        list(bars),
        {name: [bars[model][name].scaled(1e3) for model in bars] for name in (FUSED, *LOOPS)},
    )
    emit("pie/tpot", arguments.out, programs=arguments.programs, paper=PAPER, results=rows)


if __name__ == "__main__":
    main()
