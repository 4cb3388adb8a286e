"""Ayo's ablations in virtual time: optimisation (Fig. 10) and scheduling (Fig. 11), set-up (b).

    python benchmarks/ayo/paced.py [--quick] [--queries 100] [--factor 1.0]

The optimiser, the graph scheduler's state and control are the real ones; engines take the times of
``stated.py``. Advanced RAG over 48 chunks: two engines of the core model, one embedding model, one
cross-encoder. Nothing is measured on this machine: the same options give the same figures.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.ayo.query import EMBEDDER, LLM, PAGE_SIZE, RANKER, PacedQuery
from benchmarks.ayo.stated import (
    ANSWER_TOKENS,
    MAX_PROMPT_TOKENS,
    QUERY_TOKENS,
    PacedEncoder,
    Stated,
    profiled,
)
from benchmarks.options import plain_parser
from benchmarks.report import emit, print_table
from quire.control import Controller
from quire.core.actions import Deliver, Fail, Terminate
from quire.core.ids import EngineId
from quire.core.scheduler_config import SchedulerConfig
from quire.programs.workflow import Graph, GraphCache, OptPass
from quire.programs.workflow.applications.advanced_rag import advanced_rag
from quire.simulation import LightEngine, Simulation, VirtualShell, light_pool

NUM_CHUNKS = 48
INSTRUCTION = "You answer questions of users from what was found. Say what you know and no more. "
CONFIG = {
    "answer": {
        "prompt": INSTRUCTION + "Question: {question}\nContext: {context}",
        "refine_prompt": INSTRUCTION + "Question: {question}\nContext: {context}\nSo far: {answer}",
        "max_tokens": ANSWER_TOKENS,
    },
    "expand": {
        "prompt": INSTRUCTION + "Write 3 search queries for: {question}",
        "max_tokens": 3 * QUERY_TOKENS,
    },
}
"""What is known early stands in front, as in the paper's prompts."""
PASSES = {
    "none": [],
    "1+3": ["prune", "prefill"],
    "1+2+4": ["prune", "stages", "pipeline"],
    "2+4": ["stages", "pipeline"],
    "all": ["prune", "stages", "prefill", "pipeline"],
}
POLICIES = ("fcfs", "invocation", "topology", "critical_path")
SHARES = (0.2, 0.5, 0.7, 0.9)


@dataclass(frozen=True, slots=True)
class Finding:
    """Seconds from the arrival of a query to its result."""

    mean_s: float
    p99_s: float
    num_messages: int


def play(
    passes: Sequence[str],
    policy: str,
    arrivals_s: Sequence[float],
    stated: Stated,
    lengths: Sequence[int] = (NUM_CHUNKS,),
) -> Finding:
    """Queries that arrive at these times; their documents have these numbers of chunks, in turn."""
    app, cache = profiled(advanced_rag(), stated), GraphCache()
    rules = OptPass(list(passes))
    graphs = [Graph.optimize(app, asked(num), CONFIG, rules, cache) for num in lengths]
    config = SchedulerConfig(policy=policy)
    queries: dict[int, PacedQuery] = {}

    def answered(action: Deliver | Fail | Terminate) -> None:
        queries[action.program].answered(action)

    shell = VirtualShell(Controller(config), on_answer=answered)
    pool = light_pool(
        num_blocks=1 << 16,
        page_size=PAGE_SIZE,
        max_sequences=64,
        max_batch_tokens=MAX_PROMPT_TOKENS,
    )
    for number in range(2):
        engine = LightEngine(pool, stated.llm, model=LLM)
        shell.start_engine(EngineId(f"{LLM}#{number}"), engine)
    embedder = PacedEncoder("embedding", stated.encode_s, stated.encode_one_s)
    ranker = PacedEncoder("cross_encoder", stated.rank_s, stated.rank_one_s)
    shell.start_engine(EngineId(f"{EMBEDDER}#0"), embedder, EMBEDDER)
    shell.start_engine(EngineId(f"{RANKER}#0"), ranker, RANKER)
    simulation = Simulation(shell)
    for number, arrival_s in enumerate(arrivals_s, 1):
        graph = graphs[number % len(graphs)]
        query = queries[number] = PacedQuery(number, graph, simulation, stated)
        simulation.at(arrival_s, query.begin)
    simulation.run()
    took_s = sorted(
        query.ended_s - query.begun_s
        for query in queries.values()
        if query.ended_s is not None and query.begun_s is not None
    )
    assert len(took_s) == len(arrivals_s), "a query has not ended"
    p99_s = took_s[min(len(took_s) - 1, int(0.99 * len(took_s)))]
    return Finding(mean(took_s), p99_s, simulation.num_events)


def asked(num_chunks: int) -> dict[str, Any]:
    """A question and a document that the chunker cuts into so many."""
    text = " ".join(f"w{number}" for number in range(226 * num_chunks))
    return {"question": "Who?", "documents": [{"name": "a", "text": text}]}


def poisson(rate: float, num: int, seed: int = 0) -> list[float]:
    drawn, at_s, times = random.Random(seed), 0.0, []
    for _ in range(num):
        at_s += drawn.expovariate(rate)
        times.append(at_s)
    return times


def saturation(stated: Stated, num: int) -> float:
    """Queries a second that a chain of modules under ``fcfs`` ends when all come at once."""
    return num / play(PASSES["none"], "fcfs", [0.0] * num, stated).p99_s


def alone_rows(stated: Stated) -> list[dict[str, object]]:
    """One query alone: Figures 3, 10 and 11, left."""
    rows: list[dict[str, object]] = []
    chain_s = play(PASSES["none"], "fcfs", [0.0], stated).mean_s
    for name, passes in PASSES.items():
        for policy in POLICIES if name == "all" else ("topology",):
            took_s = play(passes, policy, [0.0], stated).mean_s
            rows.append(
                {
                    "passes": name,
                    "policy": policy,
                    "seconds": round(took_s, 2),
                    "faster": round(chain_s / took_s, 2),
                }
            )
    return rows


def loaded_rows(
    stated: Stated, num_queries: int, shares: Sequence[float], rate: float
) -> list[dict[str, object]]:
    """Figures 10 and 11, right: every policy with all passes, every choice of passes under
    ``topology``. ``rate``: at which a chain of modules is saturated."""
    contenders = [("all", policy) for policy in POLICIES]
    contenders += [(name, "topology") for name in PASSES if name != "all"]
    rows: list[dict[str, object]] = []
    for share in shares:
        arrivals_s = poisson(share * rate, num_queries)
        for name, policy in contenders:
            found = play(PASSES[name], policy, arrivals_s, stated)
            rows.append(
                {
                    "load": share,
                    "passes": name,
                    "policy": policy,
                    "mean_s": round(found.mean_s, 2),
                    "p99_s": round(found.p99_s, 2),
                }
            )
    return rows


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--queries", type=int, default=100, help="of each point (default: 100)")
    made.add_argument("--factor", type=float, default=1.0, help="of what is assumed of engines")
    arguments = made.parse_args()
    stated = Stated().scaled(arguments.factor)
    num_queries = 20 if arguments.quick else arguments.queries
    rate = saturation(stated, num_queries)
    alone = alone_rows(stated)
    loaded = loaded_rows(stated, num_queries, SHARES[-1:] if arguments.quick else SHARES, rate)
    print_table("one query (virtual time)", alone)
    print_table(f"Poisson, load 1 is {rate:.2f} queries a second (virtual time)", loaded)
    emit(
        "ayo/paced",
        arguments.out,
        factor=arguments.factor,
        num_queries=num_queries,
        saturation_per_s=round(rate, 3),
        alone=alone,
        loaded=loaded,
    )


if __name__ == "__main__":
    main()
