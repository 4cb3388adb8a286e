"""Measures the wait for the first token when many requests come at once over HTTP.

    python benchmarks/engine/many_streams.py [--models tiny] [--streams 256] [--quick]

All requests are sent at the same moment: random prompts of 128 tokens, 16 tokens of output, greedy,
streamed. The figures are the median and the 99th percentile of the time to the first token, the
same of the gaps between the tokens that follow, output tokens per second, and the processor time of
the server's processes, which others on the machine change less. vLLM is told to run as many
sequences as there are requests, as Quire does by default. The client is one process on the same
cores; it counts events without parsing them. A server that is behind may send several tokens in one
event: a gap is one between events, and ``events_per_answer`` says how many there were.

The share of the limit is the time in which the machine could multiply 99 of 100 prompts with the
weights, divided by the 99th percentile: no system answers 99 of 100 requests sooner, whatever it
computes first.
"""

from __future__ import annotations

import argparse
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
from benchmarks.http.stream_client import Streamed
from benchmarks.http.systems import SYSTEMS, System, default_systems
from benchmarks.machine_limits import MachineProbe
from benchmarks.measurement import Figure, figure, ratio, take_turns
from benchmarks.options import parser, rounds_of
from benchmarks.peers.catalog import PEERS, PeerMissing
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table, processor
from benchmarks.step_limits import prefill_limit_s

OUTPUT = 16
LIMITS = "the machine's limits"
"""Its turn in each round."""

Round = dict[str, float]


def run(
    system: System,
    server: Server,
    model: str,
    random: np.random.Generator,
    arguments: argparse.Namespace,
) -> Round:
    """Send all requests at once, and return the figures of the round."""
    size = (arguments.streams, arguments.prompt)
    prompts = random.integers(3, SHAPES[model].vocab_size, size).tolist()
    before_s = server.cpu_s()
    seen = seen_by_clients(asyncio.run(system.ask_all(server, model, prompts, OUTPUT)))
    return {**seen, "server_cpu_s": server.cpu_s() - before_s}


def seen_by_clients(answers: list[Streamed]) -> Round:
    """Return the figures of one round, in seconds. Times run from the first request's start,
    because a later start is a wait as well when all come at once.

    Raises:
        SystemExit: an answer has no event behind its first token.
    """
    if min(len(answer.event_s) for answer in answers) < 2:
        raise SystemExit("an answer came as one event: nothing is known about its first token")
    began_s = min(answer.start_s for answer in answers)
    first_s = [answer.start_s + answer.event_s[0] - began_s for answer in answers]
    gaps_s = np.concatenate([np.diff(answer.event_s[:OUTPUT]) for answer in answers])
    return {
        "ttft_p50_ms": 1e3 * float(np.median(first_s)),
        "ttft_p99_ms": 1e3 * float(np.quantile(first_s, 0.99)),
        "gap_p50_ms": 1e3 * float(np.median(gaps_s)),
        "gap_p99_ms": 1e3 * float(np.quantile(gaps_s, 0.99)),
        "events_per_answer": float(np.mean([len(answer.event_s) for answer in answers])),
        "tokens_per_s": len(answers) * OUTPUT / (max(one.end_s for one in answers) - began_s),
    }


def measure(model: str, arguments: argparse.Namespace) -> dict[str, list[Round]]:
    random = np.random.default_rng(0)
    with ExitStack() as stack:
        turns = {}
        for name in arguments.systems:
            system = SYSTEMS[name]
            try:
                started = system.start(model, arguments.cache, max_sequences=arguments.streams)
                server = stack.enter_context(started)
            except PeerMissing as exc:
                print(f"without {name}: {exc}", file=sys.stderr)
                continue
            turns[name] = partial(run, system, server, model, random, arguments)
        probe = stack.enter_context(MachineProbe())
        turns[LIMITS] = partial(limit, probe, model, arguments)
        title = f"{model}, {arguments.streams} streams"
        return take_turns(title, turns, rounds_of(arguments))


def limit(probe: MachineProbe, model: str, arguments: argparse.Namespace) -> Round:
    """Return the least time in which 99 of 100 prompts can be computed, in seconds."""
    count = int(0.99 * arguments.streams)
    least_s = prefill_limit_s(SHAPES[model], count, arguments.prompt, probe.measure())
    return {"limit_ms": 1e3 * least_s}


def rows_of(model: str, results: dict[str, list[Round]]) -> list[dict[str, Any]]:
    """Return a row for each system. ``over_best_peer``: its 99th percentile divided by that of the
    peer with the best median."""
    limit_ms = min(one["limit_ms"] for one in results[LIMITS])
    systems = {name: rounds for name, rounds in results.items() if name != LIMITS}
    waits = {name: [one["ttft_p99_ms"] for one in rounds] for name, rounds in systems.items()}
    peers = [name for name in systems if name in PEERS]
    best = min(peers, key=lambda name: figure(waits[name]).median, default=None)
    return [
        {
            "model": model,
            "system": name,
            **{field: figure([one[field] for one in rounds]).rounded() for field in rounds[0]},
            "share_of_limit": round(limit_ms / figure(waits[name]).median, 3),
            "best_peer": best,
            "over_best_peer": ratio(waits[name], waits[best]).rounded(3) if best else None,
        }
        for name, rounds in systems.items()
    ]


def main() -> None:
    made = parser(__doc__, models=("tiny",))
    made.add_argument("--streams", type=int, default=256, help="at once (default: %(default)s)")
    made.add_argument("--prompt", type=int, default=128, help="tokens (default: %(default)s)")
    made.add_argument(
        "--systems",
        nargs="+",
        choices=SYSTEMS,
        default=[name for name in default_systems() if name in ("quire", *PEERS)],
        help="default: %(default)s",
    )
    arguments = made.parse_args()
    rows = [one for model in arguments.models for one in rows_of(model, measure(model, arguments))]
    title = f"{arguments.streams} streams of {arguments.prompt} tokens at once"
    print_table(f"{title}, {processor()}", rows)
    draw_bars(
        arguments.out / "engine-many_streams.png",
        title,
        "time to first token, ms (median, 95 % interval)",
        [f"{one['system']}, {one['model']}" for one in rows],
        {
            "median": [Figure(**one["ttft_p50_ms"]) for one in rows],
            "99th percentile": [Figure(**one["ttft_p99_ms"]) for one in rows],
        },
    )
    emit(
        "engine/many_streams",
        arguments.out,
        streams=arguments.streams,
        prompt_tokens=arguments.prompt,
        output_tokens=OUTPUT,
        results=rows,
    )


if __name__ == "__main__":
    main()
