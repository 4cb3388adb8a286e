"""Throughput of queries that bring the same documents, with and without rows of encoders and
results of pure primitives that are kept.

    python benchmarks/ayo/repeated.py --encoder ~/models/minilm
    python benchmarks/ayo/repeated.py --encoder ~/models/minilm \\
        --encoder rank=late-interaction:~/models/minilm --workflow contextual-retrieval --pages 1

Each round draws other documents, and asks the same questions about them of both nodes in turns: one
keeps what its encoder has computed and shares what its model has answered, the other keeps nothing.
Both keep the prompts' common beginnings in their prefix caches. Answers must be equal.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.ayo.written import WRITERS
from benchmarks.measurement import figure, ratio
from benchmarks.options import plain_parser, rounds_of
from benchmarks.report import emit, print_table
from quire.cli.configuration import DEFAULT_TENANT, encoder_configs, engine_configs
from quire.core.config import ENCODER_CACHE_BYTES, SHARED_RESULTS_BYTES, NodeConfig
from quire.node import Node
from quire.programs.workflow import find_application, workflow
from training.corpus.document import Split
from training.corpus.pages import draw_page

FACTS_OF_A_PAGE = 48


def queries(arguments: Namespace, number: int) -> list[dict[str, Any]]:
    """Questions about the same pages."""
    rng = Random(f"repeated/{arguments.seed}/{number}")
    pages = [
        draw_page(rng, Split.HELD_OUT, FACTS_OF_A_PAGE, other_share=1.0)
        for _ in range(arguments.pages)
    ]
    documents = [
        {"name": f"page-{n}.md", "text": WRITERS["md"](page).decode()}
        for n, page in enumerate(pages)
    ]
    facts = rng.sample([fact for page in pages for fact in page.facts], arguments.queries)
    return [
        {"question": f"What is the {attribute} of {name}?", "documents": documents}
        for name, attribute, _ in facts
    ]


CONFIG: dict[str, dict[str, Any]] = {
    "naive-rag": {"answer": {"synthesis": "one_shot"}, "search": {"top_k": 1}},
    "contextual-retrieval": {
        "chunk": {"chunk_size": 96, "overlap": 12}, "situate": {"max_tokens": 24},
        "search": {"top_k": 4}, "rank": {"top_n": 1},
    },
}  # fmt: skip


async def play(
    node: Node, name: str, asked: list[dict[str, Any]], at_once: int
) -> tuple[float, list[str]]:
    """Seconds for all, and their answers."""
    program, turns = workflow(find_application(name)), asyncio.Semaphore(at_once)
    config = json.dumps(CONFIG[name])

    async def one(query: dict[str, Any]) -> str:
        async with turns:
            handle = node.launch(program, (json.dumps(query), config), tenant=DEFAULT_TENANT)
            answer: str = (await handle.result())["answer"]
            return answer

    started = time.perf_counter()
    answers = await asyncio.gather(*map(one, asked))
    return time.perf_counter() - started, list(answers)


async def run(arguments: Namespace) -> dict[str, object]:
    config = NodeConfig(
        tuple(
            dataclasses.replace(engine, num_threads=arguments.num_threads)
            for engine in engine_configs((), None)
        ),
        encoders=encoder_configs(arguments.encoder),
    )
    nodes = {
        name: Node(
            dataclasses.replace(config, encoder_cache_bytes=rows, shared_results_bytes=results)
        )
        for name, rows, results in (
            ("kept", ENCODER_CACHE_BYTES, SHARED_RESULTS_BYTES),
            ("not kept", 0, 0),
        )
    }
    seconds: dict[str, list[float]] = {name: [] for name in nodes}
    num_rounds = rounds_of(arguments)
    for node in nodes.values():
        await node.start()
    try:
        for number in range(num_rounds + 1):
            answers = []
            order = list(nodes) if number % 2 else list(reversed(nodes))
            for name in order:
                asked = queries(arguments, number)
                spent, said = await play(nodes[name], arguments.workflow, asked, arguments.at_once)
                if number:  # the first round warms up
                    seconds[name].append(spent / len(asked))
                answers.append(said)
            differing = sum(a != b for a, b in zip(*answers, strict=True))
            if differing:
                raise SystemExit(f"{differing} answers of {arguments.queries} differ")
            print(f"round {number} of {num_rounds}", flush=True)
    finally:
        for node in nodes.values():
            await node.stop()
    throughput = ratio(seconds["not kept"], seconds["kept"])
    print_table(
        "Queries over the same documents",
        [{"rows": name, "s a query": str(figure(values))} for name, values in seconds.items()],
    )
    print(f"throughput, kept over not kept: {throughput}")
    return {
        "seconds": {name: figure(values).rounded() for name, values in seconds.items()},
        "throughput": throughput.rounded(),
    }


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--encoder", action="append", required=True, help="[NAME=]DIRECTORY")
    made.add_argument("--workflow", choices=list(CONFIG), default="naive-rag")
    made.add_argument("--num-threads", type=int, help="of the engine")
    made.add_argument("--pages", type=int, default=4, help="of a query (default: 4)")
    made.add_argument("--queries", type=int, default=8, help="of a round (default: 8)")
    made.add_argument("--at-once", type=int, default=4, help="queries (default: 4)")
    made.add_argument("--seed", type=int, default=0)
    arguments = made.parse_args()
    emit("ayo/repeated", arguments.out, **asyncio.run(run(arguments)))


if __name__ == "__main__":
    main()
