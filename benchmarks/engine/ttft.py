"""Time to the first token of a prompt of 1024 tokens, without and with a prefix cache hit.

    python benchmarks/engine/ttft.py [--models small 1b] [--quick]

Cold: offline, one request with a fresh random prompt, next to vLLM, openvino-genai, transformers
and llama.cpp (with which only ``quire-int8`` is compared). Hit: over HTTP with streaming, the same
prompt again, next to vLLM's server. The time runs from the request's first byte to its first token,
so it includes reading the body, matching the prefix and computing the last token, which is never
cached. ``http/systems.py`` explains ``quire-fine`` and ``quire-torch``.
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
from benchmarks.generation_rounds import RoundOutcome, Workload, run_workloads
from benchmarks.http.servers import Server
from benchmarks.http.systems import SYSTEMS, System, default_systems
from benchmarks.measurement import figure, take_turns
from benchmarks.options import add_contenders, parser, rounds_of
from benchmarks.peers.catalog import PeerMissing, available
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table

PROMPT, OUTPUT = 1024, 2


def run_twice(
    system: System, server: Server, model: str, random: np.random.Generator
) -> dict[str, float]:
    """Send a fresh prompt twice; seconds to the first token of each."""
    prompt = random.integers(3, SHAPES[model].vocab_size, PROMPT).tolist()
    first_s = []
    for _ in range(2):
        answer = asyncio.run(system.ask(server, model, prompt, OUTPUT))
        first_s.append(answer.event_s[0])
    return {"cold_s": first_s[0], "hit_s": first_s[1]}


def measure_http(
    model: str, num_rounds: int, cache: Path, systems: list[str]
) -> dict[str, list[dict[str, float]]]:
    random = np.random.default_rng(1)
    with ExitStack() as stack:
        turns = {}
        for name in systems:
            try:
                server = stack.enter_context(SYSTEMS[name].start(model, cache))
            except PeerMissing as exc:
                print(f"without {name}: {exc}", file=sys.stderr)
                continue
            turns[name] = partial(run_twice, SYSTEMS[name], server, model, random)
        return take_turns(f"{model}, prefix hits over HTTP", turns, num_rounds)


def row(
    model: str, offline: RoundOutcome, http: dict[str, list[dict[str, float]]]
) -> dict[str, Any]:
    cold = offline.figures("first_s")
    ahead = offline.comparisons("first_s", larger_is_better=False)
    over_http = {
        f"{name}_{kind}": figure([one[f"{kind}_s"] for one in rounds]).scaled(1e3).rounded()
        for name, rounds in http.items()
        for kind in ("cold", "hit")
    }
    return {
        "model": model,
        "cold_ms": {name: one.scaled(1e3).rounded() for name, one in cold.items()},
        "ahead_of": {
            name: {peer: one.rounded(3) for peer, one in ratios.items()}
            for name, ratios in ahead.items()
        },
        "http_ms": over_http,
    }


def shown(one: dict[str, Any]) -> dict[str, object]:
    cells: dict[str, object] = {"model": one["model"]}
    cells |= {f"{name} cold ms": value["median"] for name, value in one["cold_ms"].items()}
    return cells | {f"http {name} ms": value["median"] for name, value in one["http_ms"].items()}


def main() -> None:
    made = parser(__doc__)
    add_contenders(made, ("quire", "quire-fine", "quire-torch"))
    made.add_argument(
        "--systems",
        nargs="*",
        choices=SYSTEMS,
        default=default_systems(),
        help="over HTTP; none: cold prompts only (default: %(default)s)",
    )
    arguments = made.parse_args()
    rows, outcomes = [], []
    for model in arguments.models:
        launches = available(arguments.contenders, model, arguments.cache)
        workload = Workload(1, PROMPT, OUTPUT)
        num_rounds = rounds_of(arguments)
        (outcome,) = run_workloads(model, launches, [workload], num_rounds, arguments.num_threads)
        systems = arguments.systems
        http = measure_http(model, num_rounds, arguments.cache, systems) if systems else {}
        outcomes.append(outcome)
        rows.append(row(model, outcome, http))
    for one in rows:
        print_table("time to first token, 1024 tokens", [shown(one)])
    firsts = [one.figures("first_s") for one in outcomes]
    names = list(dict.fromkeys(name for one in firsts for name in one))
    draw_bars(
        arguments.out / "engine-ttft.png",
        "time to first token, 1024 tokens, cold, offline",
        "ms (median, 95 % interval)",
        arguments.models,
        {
            name: [one[name].scaled(1e3) if name in one else None for one in firsts]
            for name in names
        },
    )
    emit("engine/ttft", arguments.out, results=rows)


if __name__ == "__main__":
    main()
