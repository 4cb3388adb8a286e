"""Compares techniques beside the model with the same techniques as clients (Pie 7.2 and 7.3, Fig.
8).

    python benchmarks/pie/techniques.py [--at-once 4] [--distances 0 0.02] [--quick]

The library's programs run by name on a node with the shipped model, which does solve the questions.
Clients of the same node (``technique_clients.py``), with automatic prefix caching, do the same over
completions, with concurrent requests where the technique allows it. Both get the same seeded
questions, held out from the model's training; ``same`` is how often they gave the same answer.
Ratios are the program's divided by the client's. ``x``: no client can do the technique over that
interface, and the program is compared with the closest that one can do. The latency is the median,
with ``--at-once`` of them running.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.http.servers import Server, start_shipped
from benchmarks.library import tasks
from benchmarks.measurement import Figure, figure, ratio, take_turns
from benchmarks.options import plain_parser, rounds_of
from benchmarks.pie.crowd import CrowdMeasurement, Launcher, run_crowd
from benchmarks.pie.remote_context import RemoteModel
from benchmarks.pie.technique_clients import CLIENTS
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table
from quire.engine.tokenizer import load_tokenizer
from quire.node import SHIPPED_MODEL, resolve_source
from quire.programs.library.agents.react import SYSTEM
from quire.programs.library.decoding.ebnf_decoding import ADDITION
from training.corpus.copying import repetition
from training.corpus.document import Split

PAPER = {"latency": "up to 28 % less", "throughput": "up to 34 % more"}
"""Pie's best of these techniques over vLLM and SGLang (ToT, RoT, GoT, SkoT)."""


@dataclass(frozen=True, slots=True)
class Technique:
    """One technique. ``draw``: makes the arguments of one question. ``client``: the client's
    version, ``can``: whether that is the technique itself. ``read``: extracts the answer from the
    program's result. ``system``: the conversation's system text."""

    program: str
    draw: Callable[[Random], tuple[str, ...]]
    client: str
    read: Callable[[Any], str]
    can: bool = True
    system: str = ""


@dataclass(slots=True)
class AskedQuestion:
    """One question with its answers."""

    args: tuple[str, ...]
    prompt: list[int]
    answers: dict[str, str] = field(default_factory=dict)


def _addition(random: Random) -> str:
    return f"What is {random.randint(1000, 9999)} + {random.randint(1000, 9999)}?"


def _facts(random: Random) -> str:
    """A question over many facts: a long prompt that contains words of the answer."""
    return tasks.among_agents(random).question


def _words_again(random: Random) -> str:
    """A question that repeats much of its answer, as prompt lookup needs."""
    while True:
        question, words = repetition(random, Split.HELD_OUT)
        if len(words.split()) >= 6:
            return question


def _answer(result: Any) -> str:
    return str(result["answer"])


def _text(result: Any) -> str:
    return str(result["text"])


TECHNIQUES: dict[str, Technique] = {
    "ToT": Technique(
        "tree_of_thought", lambda r: tasks.difference("3", "3", "24")(r).args, "tree_of_thought",
        _answer,
    ),
    "RoT": Technique(
        "recursion_of_thought", lambda r: tasks.word_problem(r).args, "recursion_of_thought",
        _answer, system=SYSTEM.format(tools="calc(expression), lookup(name, key)"),
    ),
    "GoT": Technique(
        "graph_of_thought", lambda r: (*tasks.balance(r).args, "2"), "graph_of_thought", _answer
    ),
    "SkoT": Technique(
        "skeleton_of_thought", lambda r: (*tasks.fan_out(r).args, "128"), "skeleton_of_thought",
        _answer,
    ),
    "sink": Technique(
        "attention_sink", lambda r: (_facts(r), "64", "4", "48"), "resent_window", _text, can=False
    ),
    "beam": Technique(
        "beam_search", lambda r: (_addition(r), "3", "32"), "beam_search", _text
    ),
    "EBNF": Technique(
        "ebnf_decoding", lambda r: (_addition(r), ADDITION, "64"), "ebnf_decoding", _text
    ),
    "speculative": Technique(
        "prompt_lookup", lambda r: (_words_again(r), "64", "32"), "plain_decoding", _text, can=False
    ),
}  # fmt: skip


async def drawn(
    technique: Technique, model: RemoteModel, num: int, seed: int
) -> list[AskedQuestion]:
    """Draw questions, with their conversations as tokens, which are precomputed for clients."""
    random = Random(f"{technique.program}/{seed}")
    asked = []
    for _ in range(num):
        args = technique.draw(random)
        messages = [{"role": "user", "content": args[0]}]
        if technique.system:
            messages = [{"role": "system", "content": technique.system}, *messages]
        tokenized = await model.post("/tokenize", {"messages": messages})
        asked.append(AskedQuestion(args, tokenized["tokens"]))
    return asked


async def as_program(launcher: Launcher, technique: Technique, one: AskedQuestion) -> None:
    request = {"program": technique.program, "args": list(one.args)}
    one.answers["program"] = technique.read(await launcher.run(request))


async def as_client(model: RemoteModel, technique: Technique, one: AskedQuestion) -> None:
    one.answers["client"] = await CLIENTS[technique.client](model, one.prompt, one.args)


@dataclass(slots=True)
class TechniqueResults:
    """One technique at one distance: rounds by contender, and the questions of all rounds."""

    rounds: dict[str, list[CrowdMeasurement]]
    asked: list[AskedQuestion]

    @property
    def latency(self) -> Figure:
        """Return the program's latency divided by the client's."""
        times = {name: [run.p50_s for run in runs] for name, runs in self.rounds.items()}
        return ratio(times["program"], times["client"])

    @property
    def same(self) -> float:
        both = [one for one in self.asked if len(one.answers) == 2]
        equal = [one.answers["program"] == one.answers["client"] for one in both]
        return sum(equal) / max(1, len(equal))


def in_pairs(turns: list[CrowdMeasurement]) -> list[CrowdMeasurement]:
    """Merge each two turns into one round."""
    return [
        CrowdMeasurement(2 / (1 / one.per_s + 1 / other.per_s), (one.p50_s + other.p50_s) / 2)
        for one, other in zip(turns[::2], turns[1::2], strict=True)
    ]


def batch_of(contender: str, turn: int) -> int:
    """Return the number of the batch that a contender asks in a turn: 1 and 2, then 2 and 1, then 3
    and 4 ...; both ask the same batch in the warm-up turn."""
    if turn == 0:
        return 0
    pair, is_second = divmod(turn - 1, 2)
    return 2 * pair + (1 + is_second if contender == "program" else 2 - is_second)


def measure(
    server: Server, name: str, distance_s: float, arguments: argparse.Namespace
) -> TechniqueResults:
    """Measure one technique at one distance. A round is two turns with two batches of questions in
    crossed order: both contenders ask the same questions, and each of them once asks a batch
    second, when more of it is in the prefix cache."""
    technique, tokenizer = TECHNIQUES[name], load_tokenizer(resolve_source(SHIPPED_MODEL))
    batches: dict[int, list[AskedQuestion]] = {}
    taken = {"program": iter(range(1_000)), "client": iter(range(1_000))}

    async def run(contender: str) -> CrowdMeasurement:
        number = batch_of(contender, next(taken[contender]))
        async with (
            RemoteModel(server.url, SHIPPED_MODEL, tokenizer, distance_s) as model,
            Launcher(server.url, distance_s) as launcher,
        ):
            if number not in batches:
                seed = arguments.seed + number
                batches[number] = await drawn(technique, model, arguments.questions, seed)
            agent: Callable[[AskedQuestion], Awaitable[None]] = partial(as_client, model, technique)
            if contender == "program":
                agent = partial(as_program, launcher, technique)
            return await run_crowd(agent, batches[number], arguments.at_once)

    contenders = {one: partial(lambda one: asyncio.run(run(one)), one) for one in taken}
    title = f"{name}, {distance_s * 1e3:g} ms away"
    turns = take_turns(title, contenders, 2 * rounds_of(arguments))
    rounds = {contender: in_pairs(runs) for contender, runs in turns.items()}
    return TechniqueResults(rounds, [one for batch in batches.values() for one in batch])


def row_of(name: str, distance_s: float, results: TechniqueResults) -> dict[str, Any]:
    technique = TECHNIQUES[name]
    program, client = results.rounds["program"], results.rounds["client"]
    rates = [run.per_s for run in program], [run.per_s for run in client]
    return {
        "technique": name,
        "distance_s": distance_s,
        "program": technique.program,
        "client": technique.client,
        "client_can": technique.can,
        "program_s": figure([run.p50_s for run in program]).rounded(3),
        "client_s": figure([run.p50_s for run in client]).rounded(3),
        "latency_over_client": results.latency.rounded(3),
        "throughput_over_client": ratio(*rates).rounded(3),
        "same_answers": round(results.same, 3),
    }


def options() -> argparse.Namespace:
    made = plain_parser(__doc__)
    made.add_argument(
        "--techniques",
        nargs="+",
        choices=TECHNIQUES,
        default=list(TECHNIQUES),
        help="default: %(default)s",
    )
    made.add_argument("--questions", type=int, default=8, help="in a batch (default: %(default)s)")
    made.add_argument("--at-once", type=int, default=4, help="default: %(default)s")
    made.add_argument("--seed", type=int, default=0, help="of questions (default: %(default)s)")
    made.add_argument(
        "--distances",
        type=float,
        nargs="+",
        default=[0.0, 0.02],
        help="seconds, client to node (default: %(default)s)",
    )
    return made.parse_args()


def show(
    rows: list[dict[str, Any]], latencies: dict[str, list[Figure]], arguments: argparse.Namespace
) -> None:
    draw_bars(
        arguments.out / "pie-techniques.png",
        "latency of the program over the client's (1: the same)",
        "ratio",
        [name if TECHNIQUES[name].can else f"{name} (x)" for name in arguments.techniques],
        latencies,
    )
    print_table(
        f"techniques, {arguments.at_once} at a time "
        f"(paper: latency {PAPER['latency']}, throughput {PAPER['throughput']})",
        [
            {
                "technique": row["technique"] + ("" if row["client_can"] else " (x)"),
                "ms away": f"{row['distance_s'] * 1e3:g}",
                "program, s": row["program_s"]["median"],
                "client, s": row["client_s"]["median"],
                "latency ratio": f"{row['latency_over_client']['median']}x",
                "throughput ratio": f"{row['throughput_over_client']['median']}x",
                "same": f"{row['same_answers']:.0%}",
            }
            for row in rows
        ],
    )


def main() -> None:
    arguments = options()
    rows: list[dict[str, Any]] = []
    latencies: dict[str, list[Figure]] = {}
    with start_shipped() as server:
        for distance_s in arguments.distances:
            of_distance = latencies[f"{distance_s * 1e3:g} ms away"] = []
            for name in arguments.techniques:
                results = measure(server, name, distance_s, arguments)
                rows.append(row_of(name, distance_s, results))
                of_distance.append(results.latency)
    show(rows, latencies, arguments)
    emit(
        "pie/techniques",
        arguments.out,
        questions=arguments.questions,
        at_once=arguments.at_once,
        seed=arguments.seed,
        paper=PAPER,
        results=rows,
    )


if __name__ == "__main__":
    main()
