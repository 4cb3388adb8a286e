"""Compares agents beside the model with the same agents as clients (Pie 7.1, Fig. 6).

    python benchmarks/pie/agents.py [--agents 16] [--at-once 8] [--peers vllm transformers]

ReAct: 8 calls of a web service that takes 100 ms. CodeAct: 8 blocks of Python that run. Swarm: 4
members, 32 letters. Every turn and letter has 16 tokens. Pie states the numbers of calls (8, 8, 32)
but not of tokens. Its latencies times its throughputs imply that 128, 128 and 32 agents ran at
once. One step of its 1B model on an L4 then takes at least 15 ms (weights, and K and V of 500
tokens each, at 300 GB/s), so 3.18 s of CodeAct allow at most 23 tokens per turn, with no time for
anything else. The programs run on the node (``agent_program.py``), launched and awaited from
``--distance`` seconds away. The clients use the same node, vLLM's server and ``transformers serve``
over the same distance, with token ids in and out (text for the last, which takes no ids) and with
automatic prefix caching where available. The program's Python runs in a child in the sandbox, the
client's directly in the client, which favours the client. Greedy, random weights: the numbers of
tokens are forced and the text means nothing. All agents ask different questions after one common
system text.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import httpx
from tokenizers import Tokenizer

from benchmarks.checkpoints import SHAPES
from benchmarks.http.servers import Server, start_quire, start_transformers, start_vllm
from benchmarks.measurement import figure, ratio, take_turns
from benchmarks.options import parser, rounds_of
from benchmarks.peers.catalog import model_directory
from benchmarks.pie.agent_program import tokens_of
from benchmarks.pie.crowd import CrowdMeasurement, Launcher, run_crowd
from benchmarks.pie.web_service import WebService
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table

HERE = Path(__file__).resolve().parent
LATENCY_S = 0.1
CODE = "print(sum(number * number for number in range(10_000)))"
KINDS: dict[str, dict[str, int]] = {
    "react": {"num_acts": 8, "turn_tokens": 16, "answer_tokens": 16},
    "codeact": {"num_acts": 8, "turn_tokens": 16, "answer_tokens": 16},
    "swarm": {"num_acts": 32, "turn_tokens": 16, "answer_tokens": 0, "num_members": 4},
}
LOAD = {"system_tokens": 192, "question_tokens": 32, "kinds": KINDS, "service_s": LATENCY_S}
PAPER = {"latency": "up to 15 % less", "throughput": "up to 30 % more"}
Plan = dict[str, Any]
Ran = dict[str, CrowdMeasurement]


def make_plan(kind: str, number: int, service: str, vocab_size: int) -> Plan:
    """Return the plan of the agent with this number, for every contender; seeds determine
    content."""
    return {
        "kind": kind,
        "seed": 1000 + 100 * number,
        "vocab_size": vocab_size,
        "service": service,
        "code": CODE,
        "system_tokens": LOAD["system_tokens"],
        "question_tokens": LOAD["question_tokens"],
        **KINDS[kind],
    }


class AgentClient:
    """Agents over completions of a server that is ``distance_s`` away. Use ``async with``."""

    def __init__(self, server: Server, model: str, distance_s: float) -> None:
        self._server, self._model, self._distance_s = server, model, distance_s
        self._http = httpx.AsyncClient(timeout=300)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def run(self, plan: Plan) -> None:
        await (self._swarm(plan) if plan["kind"] == "swarm" else self._turns(plan))

    async def _turns(self, plan: Plan) -> None:
        seed, vocab_size = plan["seed"], plan["vocab_size"]
        prompt = tokens_of(1, plan["system_tokens"], vocab_size)
        prompt += tokens_of(seed, plan["question_tokens"], vocab_size)
        for turn in range(plan["num_acts"]):
            prompt += await self._write(prompt, plan["turn_tokens"])
            if plan["kind"] == "react":
                (await self._http.post(plan["service"], content="{}")).raise_for_status()
            else:
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(plan["code"], "<code>", "exec"), {})
            prompt += tokens_of(seed + 1 + turn, plan["answer_tokens"], vocab_size)
        await self._write(prompt, plan["turn_tokens"])

    async def _swarm(self, plan: Plan) -> None:
        vocab_size = plan["vocab_size"]
        members = [
            tokens_of(1 + number, plan["system_tokens"], vocab_size)
            for number in range(plan["num_members"])
        ]
        letter = tokens_of(plan["seed"], plan["question_tokens"], vocab_size)
        for number in range(plan["num_acts"]):
            conversation = members[number % len(members)]
            conversation.extend(letter)
            letter = await self._write(conversation, plan["turn_tokens"])
            conversation.extend(letter)

    async def _write(self, prompt: list[int], num_tokens: int) -> list[int]:
        await asyncio.sleep(self._distance_s)
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        answer = await self._http.post(self._server.completions_url, json=body)
        answer.raise_for_status()
        written: list[int] = answer.json()["choices"][0]["token_ids"]
        return written


class TextClient(AgentClient):
    """Agents over completions of ``transformers serve``, whose prompts are text. The numbers of
    tokens are only approximate: 500 random tokens become 540 when their text is tokenised again."""

    def __init__(self, server: Server, model: Path, distance_s: float) -> None:
        super().__init__(server, str(model), distance_s)
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    async def _write(self, prompt: list[int], num_tokens: int) -> list[int]:
        await asyncio.sleep(self._distance_s)
        generation = {"min_new_tokens": num_tokens, "do_sample": False}
        body = {
            "model": self._model,
            "prompt": self._tokenizer.decode(prompt, skip_special_tokens=False),
            "max_tokens": num_tokens,
            "generation_config": json.dumps(generation),
        }
        answer = await self._http.post(self._server.completions_url, json=body)
        answer.raise_for_status()
        if (made := answer.json()["usage"]["completion_tokens"]) != num_tokens:
            raise SystemExit(f"{made} tokens came instead of {num_tokens}")
        written: list[int] = self._tokenizer.encode(answer.json()["choices"][0]["text"]).ids
        return written


class Programs:
    """Agents as programs of a node that is ``distance_s`` away. Use ``async with``."""

    def __init__(self, server: Server, source: str, distance_s: float) -> None:
        self._source = source
        self._launcher = Launcher(server.url, distance_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._launcher.__aexit__()

    async def run(self, plan: Plan) -> None:
        done = await self._launcher.run({"source": self._source, "args": [json.dumps(plan)]})
        if done != plan["num_acts"] + (plan["kind"] != "swarm"):
            raise SystemExit(f"{plan['kind']}: a program returned {done!r}")


async def run_kinds(
    driver: AgentClient | Programs, plans: dict[str, list[Plan]], at_once: int
) -> Ran:
    async with driver:
        return {
            kind: await run_crowd(driver.run, of_kind, at_once) for kind, of_kind in plans.items()
        }


def measure(model: str, arguments: argparse.Namespace) -> dict[str, list[Ran]]:
    """Measure each kind of agent; return its rounds per contender."""
    source = (HERE / "agent_program.py").read_text(encoding="utf-8")
    distance_s = arguments.distance
    with ExitStack() as stack:
        service = stack.enter_context(WebService(LATENCY_S))
        server = stack.enter_context(
            start_quire(model, arguments.cache, "--allow-upload", "--kv-cache-bytes", "1GiB")
        )
        drivers: dict[str, Callable[[], AgentClient | Programs]] = {
            "program": partial(Programs, server, source, distance_s),
            "client": partial(AgentClient, server, model, distance_s),
        }
        if "vllm" in arguments.peers:
            peer = stack.enter_context(start_vllm(model, arguments.cache))
            drivers["client of vLLM"] = partial(AgentClient, peer, model, distance_s)
        if "transformers" in arguments.peers:
            peer = stack.enter_context(start_transformers(model, arguments.cache))
            path = model_directory(arguments.cache, model)
            drivers["client of transformers"] = partial(TextClient, peer, path, distance_s)
        numbers = iter(range(1_000_000))

        def one(driver: Callable[[], AgentClient | Programs]) -> Ran:
            plans = {
                kind: [
                    make_plan(kind, next(numbers), service.url, SHAPES[model].vocab_size)
                    for _ in range(arguments.agents)
                ]
                for kind in KINDS
            }
            return asyncio.run(run_kinds(driver(), plans, arguments.at_once))

        contenders = {name: partial(one, driver) for name, driver in drivers.items()}
        title = f"{model}, {arguments.agents} agents"
        return take_turns(title, contenders, rounds_of(arguments))


def rows_of(model: str, results: dict[str, list[Ran]]) -> list[dict[str, Any]]:
    rows = []
    for kind in KINDS:
        program = [run[kind] for run in results["program"]]
        for name, runs in results.items():
            times, rates = [run[kind].p50_s for run in runs], [run[kind].per_s for run in runs]
            row: dict[str, Any] = {"model": model, "agent": kind, "as": name}
            row["agent_s"] = figure(times).rounded(3)
            row["agents_per_s"] = figure(rates).rounded(3)
            row["program_latency_over_it"] = ratio([r.p50_s for r in program], times).rounded(3)
            row["program_throughput_over_it"] = ratio([r.per_s for r in program], rates).rounded(3)
            rows.append(row)
    return rows


def options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--agents", type=int, default=16, help="in a round (default: %(default)s)")
    made.add_argument("--at-once", type=int, default=8, help="default: %(default)s")
    made.add_argument(
        "--distance",
        type=float,
        default=0.02,
        help="seconds, client to node (default: %(default)s)",
    )
    made.add_argument(
        "--peers",
        nargs="+",
        choices=("vllm", "transformers"),
        default=[],
        help="also run clients of these servers (transformers takes minutes)",
    )
    return made.parse_args()


def draw(model: str, results: dict[str, list[Ran]], arguments: argparse.Namespace) -> None:
    for label, field in (("latency, s", "p50_s"), ("agents per second", "per_s")):
        draw_bars(
            arguments.out / f"pie-agents-{field.partition('_')[0]}-{model}.png",
            f"agents, {model}, {arguments.distance * 1e3:g} ms away",
            label,
            list(KINDS),
            {
                name: [figure([getattr(run[kind], field) for run in runs]) for kind in KINDS]
                for name, runs in results.items()
            },
        )


def show(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    print_table(
        f"{arguments.agents} agents, {arguments.at_once} at a time "
        f"(paper: latency {PAPER['latency']}, throughput {PAPER['throughput']})",
        [
            {
                "model": row["model"],
                "agent": row["agent"],
                "as": row["as"],
                "one, s": row["agent_s"]["median"],
                "agents/s": row["agents_per_s"]["median"],
                "program's latency / its": f"{row['program_latency_over_it']['median']}x",
                "program's throughput / its": f"{row['program_throughput_over_it']['median']}x",
            }
            for row in rows
        ],
    )


def main() -> None:
    arguments = options()
    rows = []
    for model in arguments.models:
        results = measure(model, arguments)
        rows += rows_of(model, results)
        draw(model, results, arguments)
    show(rows, arguments)
    emit(
        "pie/agents",
        arguments.out,
        agents=arguments.agents,
        at_once=arguments.at_once,
        distance_s=arguments.distance,
        load=LOAD,
        paper=PAPER,
        results=rows,
    )


if __name__ == "__main__":
    main()
