"""Measures how often the library's reasoning and agent programs are right with the shipped model.

    python benchmarks/library/success.py [--num-cases 50] [--programs mcts react] [--seed 0]

Each program and plain greedy decoding answer the same seeded instances; the table shows both with
the 95 % Wilson interval. Nothing is timed: the rates depend on the model and the seeds, not on the
machine.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.library.tasks import TASKS, Case, LibraryTask
from benchmarks.report import emit, print_table
from quire.core.config import EngineConfig, NodeConfig
from quire.core.errors import QuireError
from quire.core.ids import ModelId, TenantId
from quire.node import Node
from quire.programs.api import Api
from quire.programs.library import find
from quire.programs.library.answers import ask
from quire.programs.sdk import inferlet

TENANT = TenantId("default")
MODEL = "quire-mini"
SIDE_BY_SIDE = 8


@inferlet("plain")
async def plain(api: Api, question: str, system: str = "") -> str:
    """Return the model's greedy reply."""
    return await ask(api, question, system=system)


def wilson(correct: int, num_cases: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share."""
    share = correct / num_cases
    centre = share + z * z / (2 * num_cases)
    spread = z * math.sqrt(share * (1 - share) / num_cases + z * z / (4 * num_cases**2))
    scale = 1 + z * z / num_cases
    return (centre - spread) / scale, (centre + spread) / scale


async def solved(node: Node, task: LibraryTask, cases: Sequence[Case]) -> list[bool]:
    """Return for each case whether the program solves it. A case in which it fails with an
    error counts as not solved."""

    async def one(case: Case) -> bool:
        async with limit:
            handle = node.launch(find(task.program), case.args, tenant=TENANT)
            try:
                return task.read(await handle.result()) == case.expected
            except QuireError as exc:
                print(f"{task.program}{case.args}: {exc.message}", file=sys.stderr)
                return False

    limit = asyncio.Semaphore(SIDE_BY_SIDE)
    return list(await asyncio.gather(*(one(case) for case in cases)))


async def solved_plainly(node: Node, task: LibraryTask, cases: Sequence[Case]) -> list[bool]:
    """Return for each case whether plain decoding solves it."""

    async def one(case: Case) -> bool:
        async with limit:
            reply = await node.launch(plain, (case.question, case.system), tenant=TENANT).result()
            return task.plain(reply) == case.expected

    limit = asyncio.Semaphore(SIDE_BY_SIDE)
    return list(await asyncio.gather(*(one(case) for case in cases)))


def row(task: LibraryTask, right: Sequence[bool], plainly: Sequence[bool]) -> dict[str, Any]:
    low, high = wilson(sum(right), len(right))
    return {
        "program": task.program,
        "task": task.about,
        "settings": task.settings,
        "instances": len(right),
        "success": round(sum(right) / len(right), 3),
        "interval": [round(low, 3), round(high, 3)],
        "plain": round(sum(plainly) / len(plainly), 3),
    }


async def measure(tasks: Sequence[LibraryTask], num_cases: int, seed: int) -> list[dict[str, Any]]:
    """Return one row for each of ``tasks``, on a node started for them."""
    engine = EngineConfig(source=MODEL, name=ModelId(MODEL))
    node = Node(NodeConfig(engines=(engine,)))
    await node.start()
    try:
        rows = []
        for task in tasks:
            cases = task.cases(num_cases, seed)
            right = await solved(node, task, cases)
            rows.append(row(task, right, await solved_plainly(node, task, cases)))
            print(rows[-1], file=sys.stderr)
        return rows
    finally:
        await node.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num-cases", type=int, default=50, help="instances for each program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", nargs="*", help="only these")
    parser.add_argument("--out", type=Path, help="folder for library-success.json")
    options = parser.parse_args()
    tasks = [task for task in TASKS if not options.programs or task.program in options.programs]
    rows = asyncio.run(measure(tasks, options.num_cases, options.seed))
    print_table(f"{MODEL}, seed {options.seed}", rows)
    emit("library-success", options.out, model=MODEL, seed=options.seed, rows=rows)


if __name__ == "__main__":
    main()
