"""Measures the cost of HTTP streaming: tokens per second through the server divided by those
offline.

    python benchmarks/engine/http_streaming.py [--models small] [--requests 32] [--quick]

Concurrent requests, prompts of 128 tokens, 64 tokens of output, greedy, one event per token. The
same client reads every server; it counts events without parsing them. Offline is the same system
without HTTP: for Quire a program on the server's own node that completes all prompts
(``http/offline_program.py``), for vLLM its engine stepped in process. ``http/systems.py`` explains
``quire-fine`` and ``quire-torch``. The gap is the time between two events of one request; its
median and 99th percentile are over all requests.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.checkpoints import SHAPES
from benchmarks.http.servers import Server
from benchmarks.http.stream_client import Streamed
from benchmarks.http.systems import SYSTEMS, System, default_systems
from benchmarks.measurement import Figure, figure, ratio, take_turns
from benchmarks.options import parser, rounds_of
from benchmarks.peers.catalog import PEERS, PeerMissing, launch
from benchmarks.peers.process import PeerProcess
from benchmarks.pie.crowd import Launcher
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table

PROMPT, OUTPUT = 128, 64
PROGRAM = Path(__file__).resolve().parents[1] / "http" / "offline_program.py"


def run_http(
    system: System, server: Server, model: str, count: int, random: np.random.Generator
) -> dict[str, Any]:
    """Run one round over HTTP. Raises ``SystemExit`` if tokens did not come one per event."""
    prompts = random.integers(3, SHAPES[model].vocab_size, (count, PROMPT)).tolist()
    answers = asyncio.run(system.ask_all(server, model, prompts, OUTPUT))
    check_events(answers)
    started_s = min(answer.start_s for answer in answers)
    total_s = max(answer.end_s for answer in answers) - started_s
    gaps = np.concatenate([np.diff(answer.event_s[:OUTPUT]) for answer in answers])
    return {
        "tokens_per_s": count * OUTPUT / total_s,
        "gap_p50_s": float(np.median(gaps)),
        "gap_p99_s": float(np.quantile(gaps, 0.99)),
    }


def check_events(answers: list[Streamed]) -> None:
    """Raise ``SystemExit`` if a server puts several tokens into one event; trailing events without
    tokens are allowed."""
    fewest = min(len(answer.event_s) for answer in answers)
    if fewest < OUTPUT:
        raise SystemExit(f"{fewest} events came for {OUTPUT} tokens: not one event per token")


def run_on_node(
    every_step: bool, server: Server, model: str, count: int, random: np.random.Generator
) -> dict[str, Any]:
    """Run one round as a program of the server's node."""
    plan = {
        "seed": int(random.integers(1 << 31)),
        "vocab_size": SHAPES[model].vocab_size,
        "count": count,
        "prompt": PROMPT,
        "output": OUTPUT,
        "every_step": every_step,
    }

    async def run() -> dict[str, float]:
        request = {"source": PROGRAM.read_text(encoding="utf-8"), "args": [json.dumps(plan)]}
        async with Launcher(server.url, distance_s=0.0) as launcher:
            report: dict[str, float] = await launcher.run(request)
            return report

    return rate_of(asyncio.run(run()))


def run_stepped(
    worker: PeerProcess, model: str, count: int, random: np.random.Generator
) -> dict[str, Any]:
    prompts = random.integers(3, SHAPES[model].vocab_size, (count, PROMPT)).tolist()
    return rate_of(worker.generate(prompts, OUTPUT))


def rate_of(report: dict[str, float]) -> dict[str, float]:
    return {"tokens_per_s": report["num_tokens"] / report["total_s"]}


def measure(model: str, count: int, num_rounds: int, cache: Path, systems: list[str]) -> Any:
    """Run rounds of every system's server and of its offline run, in turn."""
    random = np.random.default_rng(0)
    with ExitStack() as stack:
        turns: dict[str, Callable[[], dict[str, Any]]] = {}
        for name in systems:
            try:
                server = stack.enter_context(SYSTEMS[name].start(model, cache))
            except PeerMissing as exc:
                print(f"without {name}: {exc}", file=sys.stderr)
                continue
            turns[f"{name} http"] = partial(run_http, SYSTEMS[name], server, model, count, random)
            if name in PEERS:
                worker = stack.enter_context(launch(name, model, cache).start())
                offline = partial(run_stepped, worker)
            else:
                offline = partial(run_on_node, name == "quire-fine", server)
            turns[f"{name} offline"] = partial(offline, model, count, random)
        return take_turns(f"{model}, {count} streams", turns, num_rounds)


def row(model: str, count: int, name: str, results: dict[str, list[dict[str, Any]]]) -> Any:
    http, offline = results[f"{name} http"], results[f"{name} offline"]

    def of(rounds: list[dict[str, Any]], field: str) -> list[float]:
        return [one[field] for one in rounds]

    rate = "tokens_per_s"
    return {
        "model": model,
        "num_requests": count,
        "system": name,
        "http_tokens_per_s": figure(of(http, rate)).rounded(),
        "offline_tokens_per_s": figure(of(offline, rate)).rounded(),
        "http_over_offline": ratio(of(http, rate), of(offline, rate)).rounded(3),
        "gap_p50_ms": figure(of(http, "gap_p50_s")).scaled(1e3).rounded(),
        "gap_p99_ms": figure(of(http, "gap_p99_s")).scaled(1e3).rounded(),
    }


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--requests", type=int, default=32, help="at once (default: %(default)s)")
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
        results = measure(
            model, arguments.requests, rounds_of(arguments), arguments.cache, arguments.systems
        )
        names = [name for name in arguments.systems if f"{name} http" in results]
        rows += [row(model, arguments.requests, name, results) for name in names]
    print_table("HTTP with streaming over offline", rows)
    bars = {
        name: [Figure(**one[f"{name}_tokens_per_s"]) for one in rows]
        for name in ("offline", "http")
    }
    draw_bars(
        arguments.out / "engine-http_streaming.png",
        f"{arguments.requests} streams, one event per token",
        "tokens/s (median, 95 % interval)",
        [f"{one['system']}, {one['model']}" for one in rows],
        bars,
    )
    emit("engine/http_streaming", arguments.out, results=rows)


if __name__ == "__main__":
    main()
