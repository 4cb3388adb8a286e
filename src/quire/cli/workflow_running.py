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
from quire.cli.program_end import status_of_end
from quire.client import Client
from quire.core.config import NodeConfig
from quire.core.errors import ProgramFailed
from quire.node import Node
from quire.programs.workflow import StepLog
from quire.programs.workflow.durable import QueryId
from quire.programs.workflow.query import Query
from quire.programs.workflow.speculation import SpeculationFigures


class Bounds(TypedDict):
    """The limits of one query."""

    deadline_s: float | None
    max_generated_tokens: int | None
    speculate: bool


class ShownLog(StepLog):
    """Reports on stderr that a query goes on."""

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


def finish(running: Coroutine[Any, Any, dict[str, Any]]) -> None:
    """Wait for the results of a query and print its answer, or all results if none is called
    "answer"."""
    with status_of_end():
        results = asyncio.run(running)
    print_result(results.get("answer", results))


async def run_here(config: NodeConfig, query: Query) -> dict[str, Any]:
    node = Node(config)
    with errors_of_starting_raised_only(), loading_progress() as progress:
        await node.start(progress)
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
        if kept_as is None:
            return await node.query(name, query, config=config, **bounds)
        events = node.query_events(
            name,
            query,
            config=config or None,
            query_id=kept_as.key,
            resume=kept_as.resume,
            repeat_interrupted=kept_as.repeat_interrupted,
            **bounds,
        )
        results: dict[str, Any] = {}
        async for event in events:
            if event["type"] == "resumed":
                _show_kept(event["num_kept"], event["num_primitives"])
            elif event["type"] == "ended":
                results = event["results"]
        return results
