"""Shows where the time of one query over real engines goes.

    python benchmarks/ayo/real_timeline.py --encoder ~/models/minilm --workflow advanced-rag

Asks the queries of ``real.py`` one after the other, each of a tenant of its own, and shows of the
last one for each primitive when it began and how long it took, in milliseconds, and for each time
between two events what ran meanwhile: processor time of the models, of the encoders and of the node
itself, which does all else. On a machine that other work loads, trust these: a wall time waits for
others. The sum over these times of what takes longer, the models or all else, is the least that the
query could take if each had a core of its own. ``--passes`` leaves passes out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.ayo.real import (
    CONFIG,
    PASSES,
    add_node_options,
    application,
    chat_model,
    engines_of_models,
    node_config,
    pin,
    query,
)
from benchmarks.options import plain_parser
from benchmarks.process_memory import tree
from benchmarks.process_time import cpu_s_of_one
from benchmarks.report import emit, print_table
from quire.core.ids import TenantId
from quire.node import Node
from quire.programs.api import Api
from quire.programs.inferlet import Inferlet
from quire.programs.workflow import OptPass, StepLog, run_query
from quire.programs.workflow.execution.watching import PrimitiveStep
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.optimizing.graph_cache import GraphCache
from quire.programs.workflow.running import Config, Query, query_program


class Moment(NamedTuple):
    """Wall time and processor time so far, in seconds, when ``what`` happened."""

    what: str
    wall_s: float
    models_s: float
    encoders_s: float
    node_s: float


class Clocks:
    """``models``: the processes of their engines. All other children are encoders. To look for
    processes takes 10 ms, so it is done once."""

    def __init__(self, models: Sequence[int]) -> None:
        self._models = [process for engine in models for process in tree(engine)]
        others = {*tree(os.getpid())} - {*self._models, os.getpid()}
        self._encoders = list(others)

    def now(self, what: str) -> Moment:
        models_s, encoders_s = (
            sum(map(cpu_s_of_one, processes)) for processes in (self._models, self._encoders)
        )
        return Moment(what, time.perf_counter(), models_s, encoders_s, time.process_time())


class Marks(StepLog):
    """A log of steps that reads the clocks at each event."""

    def __init__(self, clocks: Clocks) -> None:
        super().__init__()
        self._clocks = clocks
        self.moments = [clocks.now("")]

    async def began(self, primitive: Primitive, started_s: float) -> None:
        self.moments.append(self._clocks.now(f"+ {primitive.id}"))

    async def ended(self, step: PrimitiveStep) -> None:
        await super().ended(step)
        self.moments.append(self._clocks.now(f"- {step.primitive.id}"))


def marked(name: str, passes: Sequence[str], clocks: Clocks, found: list[Marks]) -> Inferlet:
    """Return the program of one query; what it took is put into ``found``."""
    app, cache = application(name), GraphCache()

    async def main(api: Api, query: Query, config: Config) -> dict[str, Any]:
        marks = Marks(clocks)
        found.append(marks)
        result = await run_query(
            api, app, query, config, passes=OptPass(passes), cache=cache, watcher=marks
        )
        marks.moments.append(clocks.now("end"))
        return result

    return query_program(app, main)


async def run(arguments: Namespace) -> dict[str, object]:
    core = chat_model(arguments.core, arguments.cache)
    tenants = [TenantId(f"query-{number}") for number in range(arguments.queries)]
    config = node_config(arguments, core, tenants)
    if arguments.max_batch_tokens is not None:
        engines = [
            dataclasses.replace(one, max_batch_tokens=arguments.max_batch_tokens)
            for one in config.engines
        ]
        config = dataclasses.replace(config, engines=tuple(engines))
    node = Node(config)
    await node.start()
    try:
        models = engines_of_models()
        pin(models, arguments.llm_cores, arguments.other_cores)
        found: list[Marks] = []
        program = marked(arguments.workflow, arguments.passes, Clocks(models), found)
        for number, tenant in enumerate(tenants):
            asked = query(arguments.workflow, arguments, number)
            given = json.dumps(asked), json.dumps(CONFIG[arguments.workflow])
            handle = node.launch(program, given, tenant=tenant)
            await handle.result()
    finally:
        await node.stop()
    return told(found[-1])


def told(marks: Marks) -> dict[str, object]:
    first, last = marks.moments[0], marks.moments[-1]
    began_s = min(step.started_s for step in marks.steps)
    print_table(
        "Primitives, ms",
        [
            {
                "primitive": step.primitive.id,
                "from": f"{(step.started_s - began_s) * 1e3:.0f}",
                "took": f"{(step.ended_s - step.started_s) * 1e3:.0f}",
                "size": str(step.primitive.size),
            }
            for step in sorted(marks.steps, key=lambda one: one.started_s)
        ],
    )
    rows = [_row(one, other) for one, other in zip(marks.moments, marks.moments[1:], strict=False)]
    print_table("Between events, ms", [{k: str(v) for k, v in row.items()} for row in rows])
    total = _row(first, last)
    at_least_ms = sum(max(row["models"], row["encoders"] + row["node"]) for row in rows)
    print(total, f"with a core for models and one for all else at least {at_least_ms:.0f}")
    return {"total": total, "at_least_ms": round(at_least_ms), "between": rows}


def _row(one: Moment, other: Moment) -> dict[str, Any]:
    took = {
        field: round((getattr(other, f"{field}_s") - getattr(one, f"{field}_s")) * 1e3, 1)
        for field in ("wall", "models", "encoders", "node")
    }
    return {"until": other.what, **took}


def main() -> None:
    made = plain_parser(__doc__)
    add_node_options(made)
    made.add_argument("--workflow", choices=list(CONFIG), default="advanced-rag")
    made.add_argument("--passes", nargs="*", choices=PASSES["quire"], default=PASSES["quire"])
    made.add_argument("--queries", type=int, default=3, help="the last is shown (default: 3)")
    made.add_argument("--pages", type=int, default=2, help="of about 500 words (default: 2)")
    made.add_argument("--max-batch-tokens", type=int, help="of the models")
    made.add_argument("--seed", type=int, default=0)
    arguments = made.parse_args()
    emit("ayo/real_timeline", arguments.out, **asyncio.run(run(arguments)))


if __name__ == "__main__":
    main()
