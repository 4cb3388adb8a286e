"""Compares adaptive dispatch of messages with its three baselines (Pie, Table 5).

    python benchmarks/pie/dispatch.py [--programs 128] [--models small] [--quick]

Programs that take every step themselves (``fine``), all at once, on one node for each policy:
``eager`` sends each command by itself, ``k_only`` waits for k commands, ``t_only`` sends when the
oldest command has waited t, ``adaptive`` sends all ready commands when the engine is idle. k and t
are the best of those tried (``--k``, ``--t``). Output tokens per second, higher is better.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.checkpoints import SHAPES
from benchmarks.measurement import Figure, figure, ratio, take_turns
from benchmarks.options import parser, rounds_of
from benchmarks.peers.catalog import model_directory
from benchmarks.pie.dispatch_policies import Eager, KOnly, TOnly
from benchmarks.pie.loop_node import LoopNode, Ran, loop_node, run_loops
from benchmarks.pie.loops import LOOPS
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table
from quire.core.policy import DispatchPolicy
from quire.node import Node

PROMPT, OUTPUT = 32, 8
PAPER = {"eager": 15.1, "k_only": 2.8, "t_only": 1.09}
"""Speed-up of Pie's adaptive policy over each."""


def policies(arguments: Any) -> dict[str, DispatchPolicy | None]:
    """Policies by name; None: Quire's own."""
    made: dict[str, DispatchPolicy | None] = {"adaptive": None, "eager": Eager()}
    made |= {f"k_only {k}": KOnly(k) for k in arguments.k}
    made |= {f"t_only {1e3 * t_s:g} ms": TOnly(t_s) for t_s in arguments.t}
    return made


def measure(model: str, arguments: Any) -> dict[str, list[Ran]]:
    random = np.random.default_rng(0)
    path = model_directory(arguments.cache, model)
    with asyncio.Runner() as runner, ExitStack() as stack:

        def run(node: Node) -> Ran:
            size = (arguments.programs, PROMPT)
            prompts = random.integers(3, SHAPES[model].vocab_size, size).tolist()
            return runner.run(run_loops(node, LOOPS["fine"], prompts, OUTPUT))

        contenders = {}
        for name, policy in policies(arguments).items():
            serving = loop_node(path, arguments.num_threads, policy)
            node = runner.run(serving.__aenter__()).node
            stack.callback(partial(end, runner, serving))
            contenders[name] = partial(run, node)
        title = f"{model}, {arguments.programs} programs"
        return take_turns(title, contenders, rounds_of(arguments))


def end(runner: asyncio.Runner, serving: AbstractAsyncContextManager[LoopNode]) -> None:
    runner.run(serving.__aexit__(None, None, None))


def best_of_each(rates: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the setting with the best median of each policy."""
    best: dict[str, list[float]] = {}
    for name, values in rates.items():
        policy = name.split()[0]
        if policy not in best or figure(values).median > figure(best[policy]).median:
            best[policy] = values
    return best


def main() -> None:
    made = parser(__doc__, models=("small",))
    made.add_argument("--programs", type=int, default=128, help="at once (default: %(default)s)")
    made.add_argument("--k", type=int, nargs="+", default=[32, 128], help="default: %(default)s")
    made.add_argument(
        "--t", type=float, nargs="+", default=[0.005, 0.02], help="seconds (default: %(default)s)"
    )
    arguments = made.parse_args()
    rows: list[dict[str, Any]] = []
    bars: dict[str, dict[str, Figure]] = {}
    for model in arguments.models:
        results = measure(model, arguments)
        rates = {
            name: [run.num_tokens / run.total_s for run in runs] for name, runs in results.items()
        }
        best = best_of_each(rates)
        bars[model] = {name: figure(values) for name, values in best.items()}
        rows += [
            {
                "model": model,
                "policy": name,
                "tokens_per_s": figure(values).rounded(),
                "adaptive_over_it": ratio(rates["adaptive"], values).rounded(3),
                "paper": PAPER.get(name.split()[0]),
            }
            for name, values in rates.items()
        ]
    print_table(
        f"{arguments.programs} programs that take every step themselves",
        [
            {
                "model": row["model"],
                "policy": row["policy"],
                "tokens/s": row["tokens_per_s"]["median"],
                "adaptive over it": f"{row['adaptive_over_it']['median']}x",
                "paper": "" if row["paper"] is None else f"{row['paper']}x",
            }
            for row in rows
        ],
    )
    draw_bars(
        arguments.out / "pie-dispatch.png",
        f"dispatch policies, {arguments.programs} programs",
        "output tokens per second",
        list(bars),
        {name: [bars[model][name] for model in bars] for name in next(iter(bars.values()))},
    )
    emit("pie/dispatch", arguments.out, programs=arguments.programs, results=rows)


if __name__ == "__main__":
    main()
