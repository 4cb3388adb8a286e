"""Measures the throughput of queries that bring the same documents: what applications of one tenant
share.

    python benchmarks/ayo/repeated.py --encoder ~/models/minilm
    python benchmarks/ayo/repeated.py --encoder ~/models/minilm \\
        --encoder rank=late-interaction:~/models/minilm \\
        --workflow contextual-retrieval --workflow advanced-rag --pages 1

Each round draws other documents, and asks the same questions about them in these ways, in turns:

* *shared*: a node as it is. All queries are of one tenant.
* *not kept*: a node that keeps no rows of encoders and no results of pure primitives. Queries that
  run at the same time share both all the same, and prompts' beginnings stay in the prefix cache.
* *apart*: the first node, where each query is of a tenant of its own. It shares nothing.

Several workflows take the queries in turn, on the same node. Then there is a fourth way, *by
workflow*: the first node, where each workflow is of a tenant of its own.

Answers must be equal. The figures are wall time and processor time of all processes: the second one
hardly depends on what else the machine does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.ayo.written import WRITERS
from benchmarks.measurement import Figure, figure, ratio
from benchmarks.options import plain_parser, rounds_of
from benchmarks.process_time import cpu_s
from benchmarks.report import emit, print_table
from quire.cli.configuration import DEFAULT_TENANT, encoder_configs, engine_configs
from quire.core.config import NodeConfig, TenantConfig
from quire.core.ids import TenantId
from quire.node import Node
from quire.programs.workflow import find_application, workflow
from training.corpus.document import Split
from training.corpus.pages import draw_page

FACTS_OF_A_PAGE = 48
SHARED, NOT_KEPT, APART, BY_WORKFLOW = "shared", "not kept", "apart", "by workflow"


def ways_of(arguments: Namespace) -> list[str]:
    several = [BY_WORKFLOW] if len(arguments.workflow) > 1 else []
    return [SHARED, NOT_KEPT, APART, *several]


def queries(arguments: Namespace, number: int) -> list[dict[str, Any]]:
    """Draw questions about the same pages."""
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
    "advanced-rag": {
        "expand": {"max_tokens": 96}, "search": {"top_k": 4}, "rank": {"top_n": 1},
    },
    "contextual-retrieval": {
        "chunk": {"chunk_size": 96, "overlap": 12}, "situate": {"max_tokens": 24},
        "search": {"top_k": 4}, "rank": {"top_n": 1},
    },
}  # fmt: skip


class Spent(NamedTuple):
    """What a query took on average: wall time and processor time, in seconds."""

    wall_s: float
    processor_s: float


class Player:
    """Asks queries of nodes, ``at_once`` at a time. ``apart``: a tenant for each query and each
    workflow of all rounds."""

    def __init__(
        self, nodes: Mapping[str, Node], apart: Sequence[TenantId], arguments: Namespace
    ) -> None:
        self._nodes, self._apart = nodes, list(apart)
        self._at_once: int = arguments.at_once
        names: list[str] = arguments.workflow
        self._programs = [(workflow(find_application(name)), CONFIG[name]) for name in names]

    async def play(self, way: str, asked: Sequence[dict[str, Any]]) -> tuple[Spent, list[str]]:
        """Return what a query took, and all answers."""
        node = self._nodes[NOT_KEPT if way == NOT_KEPT else SHARED]
        turns = asyncio.Semaphore(self._at_once)
        tenants = self._tenants(way, len(asked))

        async def one(number: int) -> str:
            program, config = self._programs[number % len(self._programs)]
            arguments = (json.dumps(asked[number]), json.dumps(config))
            async with turns:
                handle = node.launch(program, arguments, tenant=tenants[number])
                answer: str = (await handle.result())["answer"]
                return answer

        began_s, began_cpu_s = time.perf_counter(), cpu_s(os.getpid())
        answers = await asyncio.gather(*map(one, range(len(asked))))
        spent = Spent(
            (time.perf_counter() - began_s) / len(asked),
            (cpu_s(os.getpid()) - began_cpu_s) / len(asked),
        )
        return spent, list(answers)

    def _tenants(self, way: str, num_queries: int) -> list[TenantId]:
        """Return the tenant of each query."""
        if way == APART:
            return [self._apart.pop() for _ in range(num_queries)]
        if way == BY_WORKFLOW:
            own = [self._apart.pop() for _ in self._programs]
            return [own[number % len(own)] for number in range(num_queries)]
        return [DEFAULT_TENANT] * num_queries


def nodes_of(arguments: Namespace, tenants: Sequence[TenantId]) -> dict[str, Node]:
    engines = tuple(
        dataclasses.replace(engine, num_threads=arguments.num_threads)
        for engine in engine_configs((), None)
    )
    config = NodeConfig(
        engines,
        encoders=encoder_configs(arguments.encoder),
        tenants=tuple(TenantConfig(one) for one in (DEFAULT_TENANT, *tenants)),
    )
    not_kept = dataclasses.replace(config, encoder_cache_bytes=0, shared_results_bytes=0)
    return {SHARED: Node(config), NOT_KEPT: Node(not_kept)}


async def run(arguments: Namespace) -> dict[str, object]:
    num_rounds = rounds_of(arguments)
    num_tenants = (num_rounds + 1) * (arguments.queries + len(arguments.workflow))
    tenants = [TenantId(f"apart-{number}") for number in range(num_tenants)]
    nodes = nodes_of(arguments, tenants)
    player = Player(nodes, tenants, arguments)
    ways = ways_of(arguments)
    spent: dict[str, list[Spent]] = {way: [] for way in ways}
    for node in nodes.values():
        await node.start()
    try:
        for number in range(num_rounds + 1):
            asked, said = queries(arguments, number), dict[str, list[str]]()
            for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                took, said[way] = await player.play(way, asked)
                if number:  # the first round warms up
                    spent[way].append(took)
            differing = sum(len(set(one)) > 1 for one in zip(*said.values(), strict=True))
            if differing:
                raise SystemExit(f"{differing} answers of {arguments.queries} differ")
            print(f"round {number} of {num_rounds}", flush=True)
    finally:
        for node in nodes.values():
            await node.stop()
    return reported(arguments, spent)


def reported(arguments: Namespace, spent: Mapping[str, Sequence[Spent]]) -> dict[str, object]:
    figures = {
        way: {field: figure([getattr(one, field) for one in took]) for field in Spent._fields}
        for way, took in spent.items()
    }
    faster = {
        f"{field} over {way}": ratio(
            [getattr(one, field) for one in spent[way]],
            [getattr(one, field) for one in spent[SHARED]],
        )
        for field in Spent._fields
        for way in spent
        if way != SHARED
    }
    rows = [
        {"way": way, "wall s": str(one["wall_s"]), "processor s": str(one["processor_s"])}
        for way, one in figures.items()
    ]
    print_table("A query over the same documents", rows)
    for name, times in faster.items():
        print(f"shared, times as fast by {name}: {times}")
    return {
        "workflows": arguments.workflow,
        "at_once": arguments.at_once,
        "queries": arguments.queries,
        "pages": arguments.pages,
        "seconds": {way: _rounded(one) for way, one in figures.items()},
        "times": _rounded(faster),
    }


def _rounded(figures: Mapping[str, Figure]) -> dict[str, dict[str, float]]:
    return {name: one.rounded() for name, one in figures.items()}


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--encoder", action="append", required=True, help="[NAME=]DIRECTORY")
    made.add_argument(
        "--workflow", action="append", choices=list(CONFIG), help="repeatable (default: naive-rag)"
    )
    made.add_argument("--num-threads", type=int, help="of the engine")
    made.add_argument("--pages", type=int, default=4, help="of a query (default: 4)")
    made.add_argument("--queries", type=int, default=8, help="of a round (default: 8)")
    made.add_argument("--at-once", type=int, default=4, help="queries (default: 4)")
    made.add_argument("--seed", type=int, default=0)
    arguments = made.parse_args()
    arguments.workflow = arguments.workflow or ["naive-rag"]
    name = "+".join(arguments.workflow)
    emit(f"ayo/repeated-{name}", arguments.out, **asyncio.run(run(arguments)))


if __name__ == "__main__":
    main()
