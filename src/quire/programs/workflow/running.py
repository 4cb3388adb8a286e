"""A query of a workflow as a program: in the process table, under a tenant, cancellable.

Owns all steps from an application and a query to its results.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any

from quire.core.errors import InvalidArgument
from quire.core.quotas import Quotas
from quire.programs.api import Api
from quire.programs.inferlet import Inferlet, Main
from quire.programs.workflow.documents import ReadDocument, checked_files, texts_read
from quire.programs.workflow.durable import Journal, QueryId
from quire.programs.workflow.durable.asking import check_resumed, checked_inputs
from quire.programs.workflow.execution.answer_text import SaidText
from quire.programs.workflow.execution.watching import Watcher
from quire.programs.workflow.graphs.values import ValueType, plain
from quire.programs.workflow.optimizing.apart import built_apart
from quire.programs.workflow.optimizing.construction import NodeConfig, checked_query
from quire.programs.workflow.optimizing.graph_cache import GraphCache
from quire.programs.workflow.passes import OptPass
from quire.programs.workflow.query_graph import NO_CONFIG, Graph
from quire.programs.workflow.template.app import App

NO_QUOTAS = Quotas()
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
    name: QueryId | None = None,
) -> dict[str, Any]:
    """Build, optimise and run the graph of ``query`` with the node's engines; return the results by
    name. See ``Graph.optimize`` for the other arguments and the errors.

    The node first reads HTML and PDF documents: a graph's size depends on their texts. A query with
    a ``name`` is kept in the node's data directory, and continues from there.
    """

    async def answered(
        read: Mapping[str, Any], config: NodeConfig, journal: Journal | None
    ) -> dict[str, Any]:
        optimize = partial(Graph.optimize, app, read, config, passes, cache)
        graph = await built_apart(app, passes or app.passes, optimize)
        return await graph.schedule(api, watcher, journal)

    if name is None:
        return await answered(await with_texts(api.read_document, app, query, config), config, None)
    return await durably(api, app, query, config, name, answered, watcher)


Answer = Callable[[Mapping[str, Any], NodeConfig, Journal | None], Awaitable[dict[str, Any]]]


async def durably(
    api: Api,
    app: App,
    query: Mapping[str, Any] | None,
    config: NodeConfig,
    name: QueryId,
    answer: Answer,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Return the results of the query ``name``: at once if it is finished, else from ``answer``,
    which gets its inputs, with documents as texts, and its configuration.

    Raises:
        AlreadyExists: another query was asked under the name.
        UnknownHandle: it is to be resumed, and nothing is kept of it.
        CapacityError: it is being answered, or cannot be kept.
        InvalidArgument: the node keeps no queries, or it is not known what a tool of it has done.
    """
    check_resumed(name.resume, query, config)

    async def read(query: Mapping[str, Any]) -> dict[str, Any]:
        return await with_texts(api.read_document, app, query, config)

    given = None if name.resume else query
    async with await Journal.opened(api, app.name, name) as journal:
        inputs, settings = await checked_inputs(journal, app, given, config, read)
        if journal.finished is not None:
            return await _told(journal, watcher)
        return await answer(inputs, settings, journal)


async def with_texts(
    read_document: ReadDocument, app: App, query: Mapping[str, Any], config: NodeConfig
) -> dict[str, Any]:
    """Return ``query`` with the texts of its documents; check it before any document is read.

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


async def _told(journal: Journal, watcher: Watcher | None) -> dict[str, Any]:
    """Report and return the results of a finished query."""
    results = await plain(journal.results())
    if watcher is not None:
        await watcher.resumed(journal.num_primitives, journal.num_primitives)
        for output, text in results.items():
            if watcher.reads_text and isinstance(text, str):
                await watcher.said(output, SaidText(text))
    return results


def workflow(app: App, passes: OptPass | None = None) -> Inferlet:
    """Return the program that answers one query of ``app``: launch it with ``query`` and
    ``config``. Its result has the query's results by name.


    Graphs of queries of the same shape are built once for the program's lifetime.
    """
    chosen, cache = passes or app.passes, GraphCache()

    async def main(api: Api, query: Query, config: Config = {}) -> dict[str, Any]:  # noqa: B006
        results = await run_query(api, app, query, config, passes=chosen, cache=cache)
        return await for_clients(app, results)

    return query_program(app, main)


async def for_clients(app: App, results: dict[str, Any]) -> dict[str, Any]:
    """Return ``results`` if JSON can say them: tools may pass one another what it cannot.

    Raises:
        InvalidArgument: it cannot; the error names the component and its output.
    """
    makers = {name: node.name for node in app.nodes for name in node.outputs}
    for name, kind in app.results.items():
        if kind is not ValueType.OBJECT:
            continue
        try:
            await asyncio.to_thread(json.dumps, results[name], allow_nan=False)
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidArgument(
                f"{makers[name]}: its {name!r} is a result of the query and no JSON ({exc}): give "
                "texts, finite numbers, lists and objects",
                param=makers[name],
            ) from exc
    return results


def query_program(app: App, main: Main, quotas: Quotas = NO_QUOTAS) -> Inferlet:
    """Return ``main`` as a program of form workflow with the access of the engines of ``app``."""
    reaches = app.reaches
    return Inferlet(
        name=app.name,
        main=main,
        description=app.description,
        form="workflow",
        quotas=quotas,
        hosts=reaches.hosts or (),
        topics=reaches.topics or (),
        stores=reaches.stores or (),
        mcp_servers=reaches.mcp_servers or (),
        needs_model=app.needs_model,
    )
