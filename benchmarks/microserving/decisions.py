"""Measures how long a router takes to decide where a request goes, over many engines whose pages it
knows.

    python benchmarks/microserving/decisions.py [--engines 1000] [--blocks 10000000] [--quick]

The tree is filled as the engines' nodes would fill it: each engine has prompts of its own, and all
have one system prompt. Decided are prompts of 100 pages: one that one engine has, one whose
beginning all engines have, and one that nobody has; by the strategy ``quire``, from a prompt's keys
to the plan. The time of finding those engines that take work stands beside it.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.measurement import figure
from benchmarks.options import plain_parser
from benchmarks.report import emit, print_table
from quire.cluster.engines.interfaces import LocatedPrompt
from quire.cluster.engines.node_engine import ClusterKey, NodeEngine
from quire.cluster.nodes.addresses import NodeAddress
from quire.cluster.nodes.node import NodeFigures, RoutedNode
from quire.cluster.nodes.page_tree import Keys, PageChange, PageTree
from quire.cluster.strategies import Quire

PAGE_SIZE, NUM_PAGES, NUM_SHARED = 16, 100, 50
MODEL = "small"


def engine_of(number: int, tree: PageTree) -> NodeEngine:
    node = RoutedNode(NodeAddress(f"node-{number}", "127.0.0.1", 1 + number))
    node.told(
        NodeFigures(
            models=(MODEL,),
            num_running=number % 7,
            num_blocks=20_000,
            token_bytes=24_576,
            prompt_token_s=2e-4,
        )
    )
    node.liveness.answered(is_ready=True)

    async def stays(*_: object) -> bool:
        return False

    return NodeEngine(node, ClusterKey("key"), lambda: None, tree, stays)


def fill(tree: PageTree, engines: Sequence[NodeEngine], num_blocks: int) -> Keys:
    """Give the engines their pages; return the pages that all engines have."""
    random = np.random.default_rng(1)
    shared = random.integers(0, 1 << 63, NUM_SHARED, np.uint64)
    each = num_blocks // len(engines)
    for engine in engines:
        own = random.integers(0, 1 << 63, each - NUM_SHARED, np.uint64)
        keys = [*shared.tolist(), *own.tolist()]
        assert tree.apply(engine.name, PageChange("e", 0, None, 1, keys, ()))
    found: Keys = shared.tolist()
    return found


def decide(strategy: Quire, engines: Sequence[NodeEngine], tree: PageTree, keys: Keys) -> None:
    """Decide on one request whose keys are known."""
    tokens = [0] * (PAGE_SIZE * len(keys) + 1)
    located = LocatedPrompt(tokens, keys, PAGE_SIZE, tree.matched(keys, PAGE_SIZE))
    strategy.plan(located, engines)


def ready(engines: Sequence[NodeEngine]) -> list[NodeEngine]:
    """Return the engines that are ready, as the router selects them."""
    return [
        engine
        for engine in engines
        if engine.node.serves(MODEL) and engine.node.liveness.state == "ready"
    ]


def times_us(work: Callable[[], object], count: int) -> list[float]:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        found.append(1e6 * (time.perf_counter() - began))
    return found


def measure(num_engines: int, num_blocks: int, count: int) -> dict[str, Any]:
    tree = PageTree()
    engines = [engine_of(number, tree) for number in range(num_engines)]
    began = time.perf_counter()
    shared = fill(tree, engines, num_blocks)
    filled_s = time.perf_counter() - began
    gc.collect()
    gc.freeze()  # as in a router that has run for a while: a tree of integers is not looked through
    own = [key for key in list(tree.trees("node-0")["e"].keys) if key not in set(shared)]
    new = list(range(NUM_PAGES))
    prompts = {
        "of one engine": own[:NUM_PAGES],
        "begun at all": [*shared, *new[: NUM_PAGES - NUM_SHARED]],
        "of nobody": new,
    }
    row: dict[str, Any] = {"engines": num_engines, "blocks": num_blocks}
    strategy = Quire()
    for name, keys in prompts.items():
        times = times_us(partial(decide, strategy, engines, tree, keys), count)
        row[f"{name}, us"] = figure(times).rounded()
        row[f"{name}, p99 us"] = round(float(np.percentile(times, 99)), 1)
    row["who takes work, us"] = figure(times_us(lambda: ready(engines), count)).rounded()
    row["fill, us per block"] = round(1e6 * filled_s / num_blocks, 2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    row["bytes per block"] = round(peak / num_blocks)
    return row


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--engines", type=int, default=1000, help="default: %(default)s")
    made.add_argument("--blocks", type=int, default=10_000_000, help="default: %(default)s")
    arguments = made.parse_args()
    num_blocks = arguments.blocks // 10 if arguments.quick else arguments.blocks
    row = measure(arguments.engines, num_blocks, count=200 if arguments.quick else 1000)
    print_table("A decision", [row])
    emit("microserving/decisions", arguments.out, results=[row])


if __name__ == "__main__":
    main()
