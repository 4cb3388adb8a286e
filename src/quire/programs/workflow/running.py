"""A query of a workflow as a program: in the process table, under a tenant, cancellable.

Owns the way from an application and a query to its results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from quire.programs.api import Api
from quire.programs.inferlet import Inferlet
from quire.programs.workflow.construction import NodeConfig, checked_query
from quire.programs.workflow.documents import ReadDocument, checked_files, texts_read
from quire.programs.workflow.graph_cache import GraphCache
from quire.programs.workflow.optimizer import NO_CONFIG, Graph
from quire.programs.workflow.passes import OptPass
from quire.programs.workflow.template import App
from quire.programs.workflow.values import ValueType
from quire.programs.workflow.watching import Watcher

Query = Annotated[dict[str, Any], "The inputs of the query, by name."]
Config = Annotated[dict[str, Any], "Changes to the configuration of components, by their names."]


async def run_query(
    api: Api,
    app: App,
    query: Mapping[str, Any],
    config: NodeConfig = NO_CONFIG,
    *,
    passes: OptPass | None = None,
    cache: GraphCache | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Build, optimise and run the graph of ``query`` with the node's engines; returns the results
    by name. See ``Graph.optimize`` for the other arguments and the errors.

    HTML and PDF documents are read first, by the node: a graph's size depends on their texts."""
    read = await with_texts(api.read_document, app, query, config)
    optimize = partial(Graph.optimize, app, read, config, passes, cache)
    graph = await asyncio.to_thread(optimize)  # documents may be long
    return await graph.schedule(api, watcher)


async def with_texts(
    read_document: ReadDocument, app: App, query: Mapping[str, Any], config: NodeConfig
) -> dict[str, Any]:
    """``query`` with the texts of its documents. What can be refused is refused before any is
    read.

    Raises:
        InvalidArgument: an input or configuration that the application does not take, or a document
            that cannot be read.
        ConfigError: the node lacks the extra that reads a kind of document.
    """
    app.configured(config)
    given = checked_query(app, query, checked_files)
    return {
        name: await texts_read(read_document, given[name])
        if kind is ValueType.DOCUMENTS
        else given[name]
        for name, kind in app.query_inputs.items()
    }


def workflow(app: App, passes: OptPass | None = None) -> Inferlet:
    """The program that answers one query of ``app``: launch it with ``query`` and ``config``. Its
    result has the query's results by name.

    Graphs of queries of the same shape are built once for the program's lifetime.
    """
    chosen, cache = passes or OptPass(), GraphCache()

    async def main(api: Api, query: Query, config: Config = {}) -> dict[str, Any]:  # noqa: B006
        return await run_query(api, app, query, config, passes=chosen, cache=cache)

    return Inferlet(name=app.name, main=main, description=app.description, form="workflow")
