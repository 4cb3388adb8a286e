"""Measures what an application gains by knowing its own structure: three optimisations stacked (Pie
7.2, Fig. 7).

    python benchmarks/pie/optimisations.py [--agents 32] [--at-once 16] [--quick]
                                           [--specification-tokens 192 448]

Agents call functions. Each needs 5 of 8 specifications, in its own order, some of them frequently
and some rarely, and writes 5 turns of 16 tokens (see ``agents.py``) with a call to a web service
(100 ms) and a last turn; three of four calls need no answer. Pie states no sizes. A function of two
or three arguments is described in about 192 tokens, an endpoint with its fields, its errors and an
example in about 448. The gain grows with this size, and with the number of concurrent agents,
because their decode steps are shared while prompts that are read again are not. The baseline drives
the same node from outside over HTTP, token ids in and out, with automatic prefix caching,
``--distance`` seconds away. The others are one program on the node (``function_calls.py``),
launched and awaited over the same distance: plain, then with specifications kept as exported pages
(#1), then with calls sent while the model writes (#2), then with used specifications dropped (#3).
Throughput in agents per second, ``--at-once`` of them at a time; random weights, so the text means
nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import httpx

from benchmarks.checkpoints import SHAPES
from benchmarks.http.servers import Server, start_quire
from benchmarks.measurement import Figure, figure, ratio, take_turns
from benchmarks.options import parser, rounds_of
from benchmarks.pie.crowd import CrowdMeasurement, Launcher, run_crowd
from benchmarks.pie.function_calls import tokens_of
from benchmarks.pie.web_service import WebService
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table

HERE = Path(__file__).resolve().parent
SYSTEM, QUESTION, TURN, CALL, ANSWER = 64, 32, 16, 12, 8
NUM_SPECIFICATIONS, NUM_NEEDED = 8, 5
LATENCY_S = 0.1
PAPER = 3.5
"""Speed-up of Pie's program with all three over its client baseline."""

Plan = dict[str, Any]
VARIANTS: dict[str, dict[str, bool]] = {
    "program": {},
    "+ exported pages": {"export": True},
    "+ concurrent calls": {"export": True, "concurrent": True},
    "+ dropped pages": {"export": True, "concurrent": True, "drop": True},
}


def make_plan(agent: int, length: int, service: str, vocab_size: int) -> Plan:
    """Return the plan of the agent with this number, for every contender, with specifications of
    ``length`` tokens. Module ``i`` is needed half as often as module ``i // 2``; seeds determine
    content."""
    chance = random.Random(agent)
    weights = [1 / (1 + index) for index in range(NUM_SPECIFICATIONS)]
    needed: list[int] = []
    while len(needed) < NUM_NEEDED:
        (index,) = chance.choices(range(NUM_SPECIFICATIONS), weights)
        if index not in needed:
            needed.append(index)
    return {
        "vocab_size": vocab_size,
        "service": service,
        "system": {"seed": 1, "count": SYSTEM, "position": 0},
        "specifications": [
            {
                "seed": 1000 * length + 10 * index,
                "count": length,
                "position": SYSTEM + index * length,
            }
            for index in needed
        ],
        "question": {"seed": 10_000_000 + agent, "count": QUESTION},
        "schema_end": SYSTEM + NUM_SPECIFICATIONS * length,
        "wanted": [chance.random() < 0.25 for _ in needed],
        "turn_tokens": TURN,
        "call_tokens": CALL,
        "answer_tokens": ANSWER,
        "export": False,
        "concurrent": False,
        "drop": False,
    }


@dataclass(frozen=True, slots=True)
class Links:
    """Connections of one round to the node and the service."""

    http: httpx.AsyncClient
    launcher: Launcher


Agent = Callable[[Links, Plan], Awaitable[None]]


async def run_agents(
    server: Server, agent: Agent, plans: list[Plan], arguments: argparse.Namespace
) -> CrowdMeasurement:
    async with (
        httpx.AsyncClient(timeout=300) as http,
        Launcher(server.url, arguments.distance) as launcher,
    ):
        return await run_crowd(partial(agent, Links(http, launcher)), plans, arguments.at_once)


async def as_client(
    server: Server, model: str, distance_s: float, links: Links, plan: Plan
) -> None:
    """Run the workflow from outside: one completion per turn, followed by one call."""

    def tokens(part: dict[str, int]) -> list[int]:
        return tokens_of(part["seed"], part["count"], plan["vocab_size"])

    parts = [plan["system"], *plan["specifications"], plan["question"]]
    prompt = [token for part in parts for token in tokens(part)]
    for part in (*plan["specifications"], None):
        await asyncio.sleep(distance_s)
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": TURN,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        answer = await links.http.post(server.completions_url, json=body)
        answer.raise_for_status()
        prompt = prompt + answer.json()["choices"][0]["token_ids"]
        if part is not None:
            (await links.http.post(plan["service"], content="{}")).raise_for_status()
            prompt += tokens_of(part["seed"] + 1, ANSWER, plan["vocab_size"])


async def as_program(source: str, variant: dict[str, bool], links: Links, plan: Plan) -> None:
    request = {"source": source, "args": [json.dumps({**plan, **variant})]}
    turns = await links.launcher.run(request)
    if turns != NUM_NEEDED + 1:
        raise SystemExit(f"a program made {turns} turns")


def measure(
    model: str, length: int, arguments: argparse.Namespace
) -> dict[str, list[CrowdMeasurement]]:
    source = (HERE / "function_calls.py").read_text(encoding="utf-8")
    with ExitStack() as stack:
        service = stack.enter_context(WebService(LATENCY_S))
        server = stack.enter_context(
            start_quire(model, arguments.cache, "--allow-upload", "--kv-cache-bytes", "1GiB")
        )
        numbers = iter(range(1_000_000))

        def one(agent: Agent) -> CrowdMeasurement:
            vocab_size = SHAPES[model].vocab_size
            plans = [
                make_plan(next(numbers), length, service.url, vocab_size)
                for _ in range(arguments.agents)
            ]
            return asyncio.run(run_agents(server, agent, plans, arguments))

        contenders = {"client": partial(one, partial(as_client, server, model, arguments.distance))}
        for name, variant in VARIANTS.items():
            contenders[name] = partial(one, partial(as_program, source, variant))
        title = f"{model}, {arguments.agents} agents, specifications of {length} tokens"
        return take_turns(title, contenders, rounds_of(arguments))


def options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--agents", type=int, default=32, help="in a round (default: %(default)s)")
    made.add_argument("--at-once", type=int, default=16, help="default: %(default)s")
    made.add_argument(
        "--distance",
        type=float,
        default=0.02,
        help="seconds, client to node (default: %(default)s)",
    )
    made.add_argument(
        "--specification-tokens",
        type=int,
        nargs="+",
        default=[192, 448],
        help="per specification, one figure each (default: %(default)s)",
    )
    return made.parse_args()


def measure_model(model: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of all specification lengths, and draw them."""
    rows = []
    ratios: dict[str, list[Figure]] = {}
    for length in arguments.specification_tokens:
        results = measure(model, length, arguments)
        rates = {name: [run.per_s for run in runs] for name, runs in results.items()}
        over_client = {name: ratio(rate, rates["client"]) for name, rate in rates.items()}
        ratios[f"{length} tokens a specification"] = list(over_client.values())
        rows += [
            {
                "model": model,
                "specification_tokens": length,
                "variant": name,
                "agents_per_s": figure(rate).rounded(3),
                "over_client": over_client[name].rounded(3),
                "agent_s": figure([run.p50_s for run in results[name]]).rounded(3),
            }
            for name, rate in rates.items()
        ]
    draw_bars(
        arguments.out / f"pie-optimisations-{model}.png",
        f"function-calling agents, {model}",
        "agents per second, over the client's",
        ["client", *VARIANTS],
        ratios,
    )
    return rows


def show(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    print_table(
        f"{arguments.agents} agents, {arguments.at_once} at a time (paper: {PAPER}x in all)",
        [
            {
                "model": row["model"],
                "tokens": row["specification_tokens"],
                "variant": row["variant"],
                "agents/s": row["agents_per_s"]["median"],
                "over the client": f"{row['over_client']['median']}x",
                "one agent, s": row["agent_s"]["median"],
            }
            for row in rows
        ],
    )


def main() -> None:
    arguments = options()
    rows = [row for model in arguments.models for row in measure_model(model, arguments)]
    show(rows, arguments)
    emit(
        "pie/optimisations",
        arguments.out,
        agents=arguments.agents,
        at_once=arguments.at_once,
        distance_s=arguments.distance,
        paper=PAPER,
        results=rows,
    )


if __name__ == "__main__":
    main()
