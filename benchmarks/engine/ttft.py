"""Measures the time to the first token of a prompt of 1024 tokens, without and with a prefix cache
hit.

    python benchmarks/engine/ttft.py [--models small 1b] [--quick]

Cold: offline, one request with a fresh random prompt, next to vLLM, openvino-genai, transformers
and llama.cpp (with which only ``quire-int8`` is compared). Hit: over HTTP with streaming, the same
prompt again, next to vLLM's server. The time runs from the request's first byte to its first token,
so it includes reading the body, matching the prefix and computing the last token, which is never
cached. ``http/systems.py`` explains ``quire-fine`` and ``quire-torch``.

The share of the limit is of the machine's best multiply-add rate for the contender's weights
(``machine_limits``). Beside the time stands the processor time of the whole cold run, which others
on the machine change less.
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
from benchmarks.report import emit, print_table, processor
from benchmarks.step_limits import format_of, prefill_limit_s

PROMPT, OUTPUT = 1024, 2


def run_twice(
    system: System, server: Server, model: str, random: np.random.Generator
) -> dict[str, float]:
    """Send a fresh prompt twice; return the seconds to the first token of each."""
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
        "cold_cpu_ms": {
            name: one.scaled(1e3).rounded() for name, one in offline.figures("cpu_s").items()
        },
        "share_of_limit": {
            name: offline.share(name, "first_s", limit_s(offline, name)).rounded(3) for name in cold
        },
        "ahead_of": {
            name: {peer: one.rounded(3) for peer, one in ratios.items()}
            for name, ratios in ahead.items()
        },
        "http_ms": over_http,
    }


def limit_s(outcome: RoundOutcome, name: str) -> float:
    """Return the least time for the prompt with the contender's format of weights, in seconds."""
    return prefill_limit_s(SHAPES[outcome.model], 1, PROMPT, outcome.limits, format_of(name))


def shown(one: dict[str, Any]) -> list[dict[str, object]]:
    """Return a row for each contender, and one for each server."""
    rows: list[dict[str, object]] = [
        {
            "model": one["model"],
            "contender": name,
            "cold ms": value["median"],
            "processor ms": one["cold_cpu_ms"][name]["median"],
            "over": ", ".join(
                f"{peer} {ratio['median']}x"
                for peer, ratio in one["ahead_of"].get(name, {}).items()
            ),
            "share of the limit": one["share_of_limit"][name]["median"],
            "hit ms": "",
        }
        for name, value in one["cold_ms"].items()
    ]
    servers = dict.fromkeys(name.rpartition("_")[0] for name in one["http_ms"])
    return rows + [
        dict.fromkeys(rows[0], "")
        | {
            "model": one["model"],
            "contender": f"{name}, http",
            "cold ms": one["http_ms"][f"{name}_cold"]["median"],
            "hit ms": one["http_ms"][f"{name}_hit"]["median"],
        }
        for name in servers
    ]


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
        print_table(f"time to first token, {PROMPT} tokens, {processor()}", shown(one))
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
