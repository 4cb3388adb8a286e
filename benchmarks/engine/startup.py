"""Measures the time from ``quire serve`` to ready, and a node's memory beyond weights and KV cache.

    python benchmarks/engine/startup.py [--models small] [--systems quire vllm] [--quick]

Ready is the time at which ``/ready`` (vLLM: ``/health``) answers 200. A first start is not counted,
so files are in the page cache and modules are compiled. Memory is the sum of the proportional set
sizes of all processes after a few requests, minus the checkpoint's weights and the part of the KV
cache that has been written (at most ``--kv-cache-bytes``). ``http/systems.py`` explains
``quire-fine`` and ``quire-torch``.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.checkpoints import SHAPES
from benchmarks.http.systems import SYSTEMS, System
from benchmarks.measurement import Figure, figure, take_turns
from benchmarks.options import parser, rounds_of
from benchmarks.peers.catalog import PEERS, model_directory
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table

NUM_REQUESTS, PROMPT, OUTPUT = 8, 128, 32


def start_and_use(system: System, model: str, cache: Path) -> dict[str, float]:
    """Start and stop a server; return the seconds to ready, and its memory after a few requests."""
    random = np.random.default_rng(0)
    prompts = random.integers(3, SHAPES[model].vocab_size, (NUM_REQUESTS, PROMPT)).tolist()
    with system.start(model, cache) as server:
        asyncio.run(system.ask_all(server, model, prompts, OUTPUT))
        return {"ready_s": server.ready_s, "pss_bytes": server.pss_bytes()}


def weight_bytes(model: str, cache: Path) -> int:
    return sum(path.stat().st_size for path in model_directory(cache, model).glob("*.safetensors"))


def touched_kv_bytes(model: str) -> int:
    """Return the bytes of K and V of the requests that were run; other pages of the cache were
    never written."""
    return NUM_REQUESTS * (PROMPT + OUTPUT) * SHAPES[model].kv_bytes_per_token()


def row(model: str, name: str, rounds: list[dict[str, float]], known_bytes: int) -> dict[str, Any]:
    beyond = [(one["pss_bytes"] - known_bytes) / 2**20 for one in rounds]
    return {
        "model": model,
        "system": name,
        "ready_s": figure([one["ready_s"] for one in rounds]).rounded(),
        "memory_mib": figure([one["pss_bytes"] / 2**20 for one in rounds]).rounded(),
        "beyond_weights_and_kv_mib": figure(beyond).rounded(),
    }


def main() -> None:
    made = parser(__doc__)
    made.add_argument(
        "--systems",
        nargs="+",
        choices=SYSTEMS,
        default=[name for name in SYSTEMS if name not in PEERS],
        help="vllm takes a minute a round (default: %(default)s)",
    )
    arguments = made.parse_args()
    rows = []
    for model in arguments.models:
        lives = {
            name: partial(start_and_use, SYSTEMS[name], model, arguments.cache)
            for name in arguments.systems
        }
        results = take_turns(f"starting on {model}", lives, rounds_of(arguments))
        known = weight_bytes(model, arguments.cache) + touched_kv_bytes(model)
        rows += [row(model, name, rounds, known) for name, rounds in results.items()]
    print_table(
        "start-up and memory",
        [{k: v["median"] if isinstance(v, dict) else v for k, v in one.items()} for one in rows],
    )
    draw_bars(
        arguments.out / "engine-startup.png",
        "time from start to ready",
        "s (median, 95 % interval)",
        [f"{one['model']}, {one['system']}" for one in rows],
        {"ready": [Figure(**one["ready_s"]) for one in rows]},
    )
    emit("engine/startup", arguments.out, results=rows)


if __name__ == "__main__":
    main()
