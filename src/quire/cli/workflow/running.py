"""Runs one query of ``quire workflow``, on a node of this command or on a running one, and prints
its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypedDict

from quire.cli.configuration import DEFAULT_TENANT
from quire.cli.console import messages, print_result
from quire.cli.loading import loading_progress
from quire.cli.log_output import errors_of_starting_raised_only
from quire.cli.programs.end import status_of_end
from quire.cli.progress_lines import ProgressLines
from quire.client import Client
from quire.core.config import NodeConfig
from quire.core.errors import ProgramFailed
from quire.node import Node
from quire.programs.workflow import PrimitiveStep, StepLog
from quire.programs.workflow.durable import QueryId
from quire.programs.workflow.graphs.growing_graph import GrowingGraph
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.query import Query
from quire.programs.workflow.speculation import SpeculationFigures


class Bounds(TypedDict):
    """The limits of one query."""

    deadline_s: float | None
    max_generated_tokens: int | None
    speculate: bool


class QueryProgress:
    """Lines on stderr that say how far a query is, if it takes long."""

    def __init__(self) -> None:
        self._lines = ProgressLines()
        self.num_primitives = self._num_ended = 0

    def ended(self, component: str) -> None:
        """Note that a primitive of ``component`` has ended."""
        self._num_ended += 1
        most = max(self.num_primitives, self._num_ended)
        self._lines.tell(lambda: f"{self._num_ended} of {most} primitives, the last of {component}")


class ShownLog(StepLog):
    """Reports on stderr how far a query is, and that it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = QueryProgress()

    async def ended(self, step: PrimitiveStep) -> None:
        await super().ended(step)
        self.progress.ended(step.primitive.node)

    async def grew(self, primitive: Primitive, graph: GrowingGraph) -> None:
        await super().grew(primitive, graph)
        self.progress.num_primitives = len(graph.primitives)

    async def resumed(self, num_kept: int, num_primitives: int) -> None:
        await super().resumed(num_kept, num_primitives)
        _show_kept(num_kept, num_primitives)

    async def speculated(self, figures: SpeculationFigures) -> None:
        await super().speculated(figures)
        messages().print(
            f"{figures.num_begun} primitives ran ahead, {figures.num_kept} were used, and "
            f"{figures.num_dropped_tokens} tokens were dropped"
        )


def _show_kept(num_kept: int, num_primitives: int) -> None:
    messages().print(f"{num_kept} of {num_primitives} primitives were there")


def finish(running: Coroutine[Any, Any, dict[str, Any]], as_json: bool) -> None:
    """Wait for the results of a query and print the one that is called "answer", or the only one;
    print all if there is no such result or they are wanted ``as_json``."""
    with status_of_end():
        results = asyncio.run(running)
    only = next(iter(results.values())) if len(results) == 1 else results
    print_result(results if as_json else results.get("answer", only))


async def run_here(config: NodeConfig, query: Query) -> dict[str, Any]:
    node = Node(config)
    with errors_of_starting_raised_only(), loading_progress() as progress:
        await node.start(progress)
    if isinstance(query.log, ShownLog):
        query.log.progress.num_primitives = query.num_primitives
    try:
        results: dict[str, Any] = await node.launch(query.program(), tenant=DEFAULT_TENANT).result()
        return results
    except ProgramFailed as exc:
        raise exc if query.error is None else ProgramFailed(query.error.message) from exc
    finally:
        await node.stop()


async def run_remote(
    node: Client,
    name: str,
    query: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    bounds: Bounds,
    kept_as: QueryId | None,
) -> dict[str, Any]:
    async with node:
        events = node.query_events(
            name,
            query,
            config=config or None,
            query_id=None if kept_as is None else kept_as.key,
            resume=kept_as is not None and kept_as.resume,
            repeat_interrupted=kept_as is not None and kept_as.repeat_interrupted,
            **bounds,
        )
        results: dict[str, Any] = {}
        progress = QueryProgress()
        async for event in events:
            match event["type"]:
                case "resumed":
                    _show_kept(event["num_kept"], event["num_primitives"])
                case "planned" | "grown":
                    progress.num_primitives = event["num_primitives"]
                case "primitive.ended":
                    progress.ended(event["component"])
                case "ended":
                    results = event["results"]
        return results
