"""Measures how much long prompts disturb running answers: gaps between tokens while 1024-token
prompts arrive.

    python benchmarks/engine/mixed_load.py [--models small] [--streams 8] [--prompts 4] [--quick]

Some answers stream over HTTP while prompts of 1024 tokens arrive one after another. The figure is
the 99th percentile of the gap between two tokens of a running answer, divided by the median gap of
the same answers. It stays small because prompts are computed in chunks between the others' steps.
Measured next to vLLM's server, which also chunks, where it is installed. ``http/systems.py``
explains ``quire-fine`` and ``quire-torch``.
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
from benchmarks.http.servers import Server
from benchmarks.http.systems import SYSTEMS, System, default_systems
from benchmarks.measurement import Figure, figure, take_turns
from benchmarks.options import parser, rounds_of
from benchmarks.peers.catalog import PeerMissing
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table

PROMPT, OUTPUT, LONG_PROMPT = 128, 256, 1024


async def disturb(
    system: System, server: Server, model: str, num_streams: int, prompts: Any
) -> Any:
    """Stream ``num_streams`` answers and send long prompts one after another from their middle
    on."""
    running = asyncio.create_task(system.ask_all(server, model, prompts[:num_streams], OUTPUT))
    await asyncio.sleep(0.2)
    first_s = []
    for prompt in prompts[num_streams:]:
        answer = await system.ask(server, model, prompt, 1)
        first_s.append(answer.event_s[0])
    gaps = np.concatenate([np.diff(answer.event_s[:OUTPUT]) for answer in await running])
    return gaps, first_s


def run(
    system: System,
    server: Server,
    model: str,
    num_streams: int,
    num_prompts: int,
    random: np.random.Generator,
) -> dict[str, float]:
    vocab_size = SHAPES[model].vocab_size
    prompts = random.integers(3, vocab_size, (num_streams, PROMPT)).tolist()
    prompts += random.integers(3, vocab_size, (num_prompts, LONG_PROMPT)).tolist()
    gaps, first_s = asyncio.run(disturb(system, server, model, num_streams, prompts))
    median, p99 = float(np.median(gaps)), float(np.quantile(gaps, 0.99))
    return {
        "gap_p50_ms": 1e3 * median,
        "gap_p99_ms": 1e3 * p99,
        "p99_over_median": p99 / median,
        "prompt_ttft_ms": 1e3 * float(np.median(first_s)),
    }


def main() -> None:
    made = parser(__doc__)
    made.add_argument(
        "--streams", type=int, default=8, help="running answers (default: %(default)s)"
    )
    made.add_argument("--prompts", type=int, default=4, help="long prompts (default: %(default)s)")
    made.add_argument(
        "--systems",
        nargs="+",
        choices=SYSTEMS,
        default=default_systems(),
        help="default: %(default)s",
    )
    arguments = made.parse_args()
    rows = []
    for model in arguments.models:
        random = np.random.default_rng(0)
        with ExitStack() as stack:
            turns = {}
            for name in arguments.systems:
                try:
                    server = stack.enter_context(SYSTEMS[name].start(model, arguments.cache))
                except PeerMissing as exc:
                    print(f"without {name}: {exc}", file=sys.stderr)
                    continue
                turns[name] = partial(
                    run,
                    SYSTEMS[name],
                    server,
                    model,
                    arguments.streams,
                    arguments.prompts,
                    random,
                )
            results = take_turns(f"{model}, mixed load", turns, rounds_of(arguments))
        rows += [
            {
                "model": model,
                "system": name,
                **{field: figure([r[field] for r in rounds]).rounded() for field in rounds[0]},
            }
            for name, rounds in results.items()
        ]
    print_table(
        "gaps between tokens under mixed load",
        [{k: v["median"] if isinstance(v, dict) else v for k, v in one.items()} for one in rows],
    )
    draw_bars(
        arguments.out / "engine-mixed_load.png",
        f"{arguments.streams} answers while {LONG_PROMPT}-token prompts arrive",
        "ms (median, 95 % interval)",
        [f"{one['system']}, {one['model']}" for one in rows],
        {
            "median gap": [Figure(**one["gap_p50_ms"]) for one in rows],
            "p99 gap": [Figure(**one["gap_p99_ms"]) for one in rows],
        },
    )
    emit("engine/mixed_load", arguments.out, results=rows)


if __name__ == "__main__":
    main()
