"""From ``quire serve`` to ready, and the memory that a node takes beyond weights and KV cache.

    python benchmarks/engine/startup.py [--models small] [--with-vllm] [--quick]

Ready is the moment when ``/ready`` (vLLM: ``/health``) answers 200; files are in the page cache and
modules compiled, since a first start that is not counted comes before. Memory is the sum of the
proportional set sizes of all processes after a few requests, less the checkpoint's weights and the
part of the KV cache that has been touched (at most ``--kv-cache-bytes``).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.checkpoints import SHAPES
from benchmarks.http.servers import Server, start_quire, start_vllm
from benchmarks.http.stream_client import completion_body, stream_all
from benchmarks.measurement import Figure, figure, take_turns
from benchmarks.options import parser, rounds_of
from benchmarks.peers.catalog import model_directory
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table

NUM_REQUESTS, PROMPT, OUTPUT = 8, 128, 32


def start_and_use(start: Callable[[], Server], model: str) -> dict[str, float]:
    """One life of a server: seconds to ready, memory after some work."""
    random = np.random.default_rng(0)
    prompts = random.integers(3, SHAPES[model].vocab_size, (NUM_REQUESTS, PROMPT)).tolist()
    with start() as server:
        bodies = [completion_body(model, prompt, OUTPUT) for prompt in prompts]
        asyncio.run(stream_all(server.completions_url, bodies))
        return {"ready_s": server.ready_s, "pss_bytes": server.pss_bytes()}


def weight_bytes(model: str, cache: Path) -> int:
    return sum(path.stat().st_size for path in model_directory(cache, model).glob("*.safetensors"))


def touched_kv_bytes(model: str) -> int:
    """K and V of the requests that were run; the cache's other pages were never written."""
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
    made.add_argument("--with-vllm", action="store_true", help="start vLLM's server too (slow)")
    arguments = made.parse_args()
    rows = []
    for model in arguments.models:
        starts = {"quire": partial(start_quire, model, arguments.cache)}
        starts["quire, PyTorch"] = partial(
            start_quire, model, arguments.cache, "--backend", "torch"
        )
        if arguments.with_vllm:
            starts["vllm"] = partial(start_vllm, model, arguments.cache)
        results = take_turns(
            f"starting on {model}",
            {name: partial(start_and_use, start, model) for name, start in starts.items()},
            rounds_of(arguments),
        )
        known = weight_bytes(model, arguments.cache) + touched_kv_bytes(model)
        rows += [row(model, name, rounds, known) for name, rounds in results.items()]
    print_table(
        "start-up and memory",
        [{k: v["median"] if isinstance(v, dict) else v for k, v in one.items()} for one in rows],
    )
    draw_bars(
        arguments.out / "engine-startup.png",
        "from the command to ready",
        "s (median, 95 % interval)",
        [f"{one['model']}, {one['system']}" for one in rows],
        {"ready": [Figure(**one["ready_s"]) for one in rows]},
    )
    emit("engine/startup", arguments.out, results=rows)


if __name__ == "__main__":
    main()
