"""Runs one query at a time over real engines: models on some cores, everything else on others.

    python benchmarks/ayo/real.py --encoder ~/models/minilm --llm-cores 1 --other-cores 0

*chain* runs the application's graph without any pass: one whole module after the other, as
LlamaDist does. *parallel* has pass 1 alone: a module begins when those that it needs have ended, as
under LlamaDistPC. Both ask the same engines of the same node as *quire*, which has all passes, and
spend nothing on a framework of their own. Answers must be equal.

Each query is of a tenant of its own, so that none finds what another one has computed. Documents
are pages of held-out facts; the core model is random (``benchmarks/checkpoints.py``), so its
answers have their full length and mean nothing. quire-mini is the light model and the proxy. The
ranking is late interaction over the embedding model. Chosen before the first run: 16 tokens an
answer, three expanded queries of six words.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.ayo.written import WRITERS
from benchmarks.checkpoints import SHAPES, make_checkpoint
from benchmarks.measurement import figure, ratio
from benchmarks.options import plain_parser, rounds_of
from benchmarks.peers.catalog import DEFAULT_CACHE
from benchmarks.process_memory import tree
from benchmarks.process_time import cpu_s
from benchmarks.report import ROOT, emit, print_table
from quire.cli.configuration import encoder_configs, engine_configs
from quire.core.config import NodeConfig, TenantConfig
from quire.core.ids import TenantId
from quire.core.scheduler_config import SchedulerConfig
from quire.node import SHIPPED_MODEL, Node
from quire.programs.inferlet import Inferlet
from quire.programs.workflow import App, OptPass, find_application, workflow
from quire.programs.workflow.applications import search_generation
from training.corpus.document import Split
from training.corpus.pages import draw_page

FACTS_OF_A_PAGE = 48
PASSES: Mapping[str, Sequence[str]] = {
    "chain": (),
    "parallel": ("prune",),
    "quire": ("prune", "stages", "prefill", "pipeline"),
}
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>\n{{ message.content }}"
    "{% if not loop.last or not continue_final_message %}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
CORE, LIGHT = "core", "light"
_QUERY = {"type": "string", "pattern": "^[a-z]{4}( [a-z]{4}){5}$"}
_QUERIES = {
    "type": "array",
    "items": _QUERY,
    "minItems": 3,
    "maxItems": 3,
    "x-guidance": {"whitespace_flexible": False},  # a random model would write nothing else
}
_ANSWER = {"max_tokens": 16}
_RANK = {"rank": {"top_n": 3}}
CONFIG: dict[str, dict[str, Any]] = {
    "search-generation": {
        "guess": {"max_tokens": 16}, "needs_search": {"equals": "search"}, "answer": _ANSWER,
    },
    "naive-rag": {"answer": _ANSWER},
    "advanced-rag": {"expand": {"schema": _QUERIES, "max_tokens": 256}, "answer": _ANSWER, **_RANK},
    "contextual-retrieval": {
        "chunk": {"chunk_size": 128, "overlap": 16},  # five of them are what quire-mini can read
        "situate": {"max_tokens": 16}, "answer": _ANSWER, **_RANK,
    },
}  # fmt: skip


def application(name: str) -> App:
    if name == "search-generation":
        return search_generation(proxy_model=LIGHT, core_model=CORE)
    return find_application(name)


def query(name: str, arguments: Namespace, number: int) -> dict[str, Any]:
    """Draw the query of a round, the same for all contenders."""
    rng = Random(f"real/{arguments.seed}/{number}")
    pages = [
        draw_page(rng, Split.HELD_OUT, FACTS_OF_A_PAGE, other_share=1.0)
        for _ in range(arguments.pages)
    ]
    person, attribute, _ = rng.choice(pages[0].facts)
    asked: dict[str, Any] = {"question": f"What is the {attribute} of {person}?"}
    if name != "search-generation":
        asked["documents"] = [
            {"name": f"page-{n}.md", "text": WRITERS["md"](page).decode()}
            for n, page in enumerate(pages)
        ]
    return asked


def chat_model(shape: str, cache: Path) -> Path:
    """Return the directory of a random model of this shape, with a chat template; it is made if it
    is missing."""
    path = cache / "models" / f"ayo-{shape}"
    if not path.exists():
        make_checkpoint(shape, path)
    (path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return path


def node_config(arguments: Namespace, core: Path, tenants: Sequence[TenantId]) -> NodeConfig:
    """Return a node that keeps nothing beyond a query, and whose batches are invariant, so that
    answers can be compared."""
    engines = tuple(
        dataclasses.replace(one, num_threads=len(arguments.llm_cores), batch_invariant=True)
        for one in engine_configs((f"{CORE}={core}", f"{LIGHT}={SHIPPED_MODEL}"), None)
    )
    encoder = arguments.encoder
    encoders = tuple(
        dataclasses.replace(one, num_threads=len(arguments.other_cores))
        for one in encoder_configs((f"embed={encoder}", f"rank=late-interaction:{encoder}"))
    )
    return NodeConfig(
        engines,
        encoders=encoders,
        scheduler=SchedulerConfig(policy="critical_path"),
        tenants=tuple(map(TenantConfig, tenants)),
        search=str(ROOT / "examples" / "workflows"),
        encoder_cache_bytes=0,
        shared_results_bytes=0,
    )


def engines_of_models() -> list[int]:
    """Return the process ids of the node's models; encoders have processes of their own."""
    engines = [
        process
        for process in tree(os.getpid())
        if b"quire.node.engines.engine_process" in Path(f"/proc/{process}/cmdline").read_bytes()
    ]
    if not engines:
        raise SystemExit("no process of a model's engine was found")
    return engines


def pin(models: Sequence[int], llm_cores: Sequence[int], other_cores: Sequence[int]) -> None:
    """Pin ``models``, with all processes that they have started, to ``llm_cores``, and all else to
    ``other_cores``."""
    of_models = {process for engine in models for process in tree(engine)}
    for process in tree(os.getpid()):
        for thread in Path(f"/proc/{process}/task").iterdir():
            cores = llm_cores if process in of_models else other_cores
            os.sched_setaffinity(int(thread.name), cores)


class Spent(NamedTuple):
    """The wall time of one query, and the processor time of the models and of everything else."""

    wall_s: float
    models_s: float
    other_s: float


class Rounds:
    """Asks one query of each contender in a round, in changing order. ``models``: the processes of
    their engines."""

    def __init__(
        self, node: Node, models: list[int], tenants: list[TenantId], arguments: Namespace
    ) -> None:
        self._node, self._models = node, models
        self._tenants, self._arguments = tenants, arguments
        self._programs: dict[tuple[str, str], Inferlet] = {}

    async def play(self, name: str, num_rounds: int) -> dict[str, list[Spent]]:
        """Return what each contender spent in each round, after a warm-up round."""
        spent: dict[str, list[Spent]] = {one: [] for one in PASSES}
        for number in range(num_rounds + 1):
            asked = query(name, self._arguments, number)
            shift, answers = number % len(PASSES), dict[str, str]()
            for contender in [*PASSES][shift:] + [*PASSES][:shift]:
                took, answers[contender] = await self._ask(name, contender, asked)
                if number:
                    spent[contender].append(took)
            if len(set(answers.values())) > 1:
                raise SystemExit(f"{name}: answers differ: {answers}")
            print(f"{name}: round {number} of {num_rounds}", file=sys.stderr, flush=True)
        return spent

    async def _ask(self, name: str, contender: str, asked: Mapping[str, Any]) -> tuple[Spent, str]:
        key = name, contender
        if key not in self._programs:
            self._programs[key] = workflow(application(name), OptPass(PASSES[contender]))
        arguments = json.dumps(asked), json.dumps(CONFIG[name])
        await asyncio.sleep(0.2)
        before, began_s = self._processor_s(), time.perf_counter()
        handle = self._node.launch(self._programs[key], arguments, tenant=self._tenants.pop())
        answer: str = (await handle.result())["answer"]
        wall_s, after = time.perf_counter() - began_s, self._processor_s()
        return Spent(wall_s, after[0] - before[0], after[1] - before[1]), answer

    def _processor_s(self) -> tuple[float, float]:
        models_s = sum(map(cpu_s, self._models))
        return models_s, cpu_s(os.getpid()) - models_s


async def run(arguments: Namespace) -> dict[str, object]:
    core = chat_model(arguments.core, arguments.cache)
    num_rounds = rounds_of(arguments)
    num_queries = (num_rounds + 1) * len(PASSES) * len(arguments.workflow)
    tenants = [TenantId(f"query-{number}") for number in range(num_queries)]
    node = Node(node_config(arguments, core, tenants))
    await node.start()
    try:
        models = engines_of_models()
        pin(models, arguments.llm_cores, arguments.other_cores)
        rounds = Rounds(node, models, tenants, arguments)
        found = {name: await rounds.play(name, num_rounds) for name in arguments.workflow}
    finally:
        await node.stop()
    rows = [row_of(name, spent) for name, spent in found.items()]
    print_table(
        "One query over real engines", [{k: str(v) for k, v in row.items()} for row in rows]
    )
    fields = ("core", "llm_cores", "other_cores", "pages")
    return {
        **{field: getattr(arguments, field) for field in fields},
        "rows": [
            {k: v if isinstance(v, str) else v.rounded() for k, v in row.items()} for row in rows
        ],
    }


def row_of(name: str, spent: Mapping[str, Sequence[Spent]]) -> dict[str, Any]:
    """Return the row of one application: seconds of each contender, ratios within rounds, and
    processor time."""
    wall_s = {contender: [one.wall_s for one in took] for contender, took in spent.items()}
    row: dict[str, Any] = {"application": name}
    row |= {f"{contender} s": figure(took) for contender, took in wall_s.items()}
    row |= {f"over {one}": ratio(wall_s[one], wall_s["quire"]) for one in ("chain", "parallel")}
    for contender in ("chain", "quire"):
        took = spent[contender]
        row[f"{contender}, models' processor s"] = figure([one.models_s for one in took])
        row[f"{contender}, other processor s"] = figure([one.other_s for one in took])
    return row


def add_node_options(made: ArgumentParser) -> None:
    """Add the options of the node and of the cores of its processes."""
    made.add_argument("--encoder", required=True, help="directory of an embedding model")
    made.add_argument("--core", choices=SHAPES, default="small", help="shape of the core model")
    made.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="folder of models")
    made.add_argument("--llm-cores", type=int, nargs="+", default=[1])
    made.add_argument("--other-cores", type=int, nargs="+", default=[0])


def main() -> None:
    made = plain_parser(__doc__)
    add_node_options(made)
    made.add_argument("--workflow", nargs="+", choices=list(CONFIG), default=list(CONFIG))
    made.add_argument("--pages", type=int, default=2, help="of about 500 words (default: 2)")
    made.add_argument("--seed", type=int, default=0)
    arguments = made.parse_args()
    emit("ayo/real", arguments.out, **asyncio.run(run(arguments)))


if __name__ == "__main__":
    main()
