"""``quire workflow``: lists, runs and explains the shipped applications."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from quire.cli import options as o
from quire.cli import program_options as po
from quire.cli.client import NodeClient
from quire.cli.configuration import DEFAULT_TENANT, encoder_configs, engine_configs
from quire.cli.console import escaped, output, table
from quire.cli.log_output import configure_logging
from quire.cli.mcp_servers import read_mcp_servers
from quire.cli.workflow_graphs import draw_measured, explain
from quire.cli.workflow_inputs import (
    example_inputs,
    query_inputs,
    require_inputs,
    settings_by_component,
    with_document_texts,
)
from quire.cli.workflow_options import Action, kept_as, refuse_given, refuse_unread
from quire.cli.workflow_profiles import read_profiles
from quire.cli.workflow_running import Bounds, ShownLog, finish, run_here, run_remote
from quire.client import Client
from quire.core.config import NodeConfig
from quire.core.errors import InvalidArgument
from quire.node import SHIPPED_READER
from quire.programs.workflow import App, Graph, OptPass, find_application, use_keys
from quire.programs.workflow.applications import APPLICATIONS
from quire.programs.workflow.profiles import use_profiles
from quire.programs.workflow.query import Query
from quire.programs.workflow.runners import check_some_encoder


def workflow(
    context: typer.Context,
    action: Annotated[Action, typer.Argument(help="list, run or explain.")],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE.py:NAME|FILE.yaml",
            help="The workflow, as 'quire workflow list' shows it, the App of a file, or a "
            "pipeline of Haystack (several: INDEX.yaml+ASK.yaml).",
        ),
    ] = None,
    documents: Annotated[
        list[Path] | None,
        typer.Option(
            help="A text, Markdown, HTML or PDF file, or a folder of such files. Repeatable."
        ),
    ] = None,
    question: Annotated[str | None, typer.Option(help="What is asked.")] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=VALUE",
            help="Another input of the workflow: text, or JSON. Repeatable.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="COMPONENT.KEY=VALUE",
            help="Configuration for this query, e.g. answer.synthesis=tree. Repeatable.",
        ),
    ] = None,
    deadline_s: Annotated[
        float | None,
        typer.Option(help="Seconds after which the query ends with an error."),
    ] = None,
    max_generated_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that the query's models may write together."),
    ] = None,
    speculate: Annotated[
        bool,
        typer.Option(
            "--speculate/--no-speculate",
            help="Run what is likely to be needed in spare time, before it is known that it is.",
        ),
    ] = False,
    query_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="Keep in the data directory what the query does, under this id; asked again it "
            "goes on where it was cut off.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Go on with the query of this id, whose inputs are kept."),
    ] = None,
    repeat_interrupted: Annotated[
        bool,
        typer.Option(
            "--repeat-interrupted",
            help="Call tools again that were cut off, although nobody knows what they have done.",
        ),
    ] = False,
    data_dir: po.DataDir = None,
    passes: Annotated[
        str | None,
        typer.Option(
            help="Passes of the optimiser, separated by commas, or none; default: all of "
            "prune,stages,prefill,pipeline. --speculate adds speculate."
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(help="Write the drawing of the graphs to this file; with run, as it ran."),
    ] = None,
    model: o.ModelOption = None,
    encoder: o.Encoders = None,
    encoder_instances: o.EncoderInstances = None,
    encoder_dtype: o.EncoderDType = "auto",
    vector_store: po.VectorStore = "exact",
    search: po.Search = None,
    mcp_servers: po.McpServers = None,
    profile: po.Profiles = None,
    url: o.OptionalUrl = None,
    api_key: o.ApiKey = None,
    log_level: o.LogLevel = "warning",
) -> None:
    """List the workflows, run one, or explain what the optimiser makes of it.

    'run' prints the answer to --question from --documents. It starts a node for the query, which
    --model, --encoder, --encoder-instances, --encoder-dtype, --vector-store, --search and
    --mcp-servers configure, or with --url uses a running one. naive-rag needs an embedding model,
    advanced-rag and contextual-retrieval also a cross-encoder, search-generation what is searched.
    'list' shows with --url what that node serves.

    Without --model a node of its own serves the shipped quire-reader, which is trained to answer
    from what a search has found.

    --profile takes files of 'quire profile', by which 'run' and 'explain' divide batches.

    --speculate runs what is likely to be needed in spare time: the likelier branch of a condition,
    and the answer from what a search found first, before it is ranked. The answer is the same.
    'explain --speculate' prints what may run ahead, and why not.

    --id keeps what the query does in --data-dir, or in that of the node at --url: after a crash
    the same command, or --resume, goes on from there, and repeats nothing that had ended.

    'explain' prints what each pass did to the graph of a query, or why it did nothing, and what the
    graph takes by --profile; with --svg it draws the graphs. It starts no node. 'run --svg' draws
    them when the query has ended, with the times that were measured. 'explain' without
    --documents takes a document of 6144 words.

    Examples:

        quire workflow list

        quire workflow list --url http://127.0.0.1:8000

        quire workflow run naive-rag --encoder ~/models/minilm --documents notes --question "Why?"

        quire workflow run naive-rag --url http://127.0.0.1:8000 --documents notes --question "Why?"

        quire workflow run search-generation --search notes --question "Why?"

        quire workflow run search-generation --search notes --question "Why?" --data-dir d --id why

        quire workflow run search-generation --search notes --data-dir d --resume why

        quire workflow explain naive-rag --documents notes --set answer.synthesis=tree

        quire workflow explain advanced-rag --profile minilm.profile.json --svg graph.svg
    """
    configure_logging(log_level, log_requests=False)
    refuse_unread(context, action)
    if action == "list":
        _show_list(_served(url, api_key) if url else _shipped())
        return
    if name is None:
        raise InvalidArgument(
            f"name a workflow to {action}, or list them with 'quire workflow list'"
        )
    config = settings_by_component(settings or [])
    query = query_inputs(inputs or [], question, documents)
    if action == "explain":
        app = use_profiles(find_application(name), read_profiles(profile or ()))
        _explain(app, query, config, passes=_passes(passes, speculate), svg=svg)
        return
    kept = kept_as(query_id, resume, repeat_interrupted)
    asked_for = None if resume is not None and not query else query
    bounds: Bounds = {
        "deadline_s": deadline_s,
        "max_generated_tokens": max_generated_tokens,
        "speculate": speculate,
    }
    if url is not None:
        refuse_given(context, url)
        finish(run_remote(Client(url, api_key), name, asked_for, config, bounds, kept))
        return
    node = NodeConfig(
        engine_configs(model or (SHIPPED_READER,), None),
        encoders=encoder_configs(encoder or (), encoder_instances or (), encoder_dtype),
        vector_store=vector_store,
        search=search,
        data_dir=data_dir,
        mcp_servers=read_mcp_servers(mcp_servers, [DEFAULT_TENANT]),
    )
    app = use_keys(find_application(name), os.environ)
    use_profiles(app, read_profiles(profile or (), node.engines, node.encoders))
    log = ShownLog()
    asked = Query(app, asked_for, config, passes=_passes(passes), name=kept, log=log, **bounds)
    _ask(node, asked, asked_for, svg)


def _explain(
    app: App,
    query: Mapping[str, Any],
    config: Mapping[str, dict[str, Any]],
    *,
    passes: OptPass,
    svg: Path | None,
) -> None:
    inputs = {**example_inputs(app), **query}
    read = asyncio.run(with_document_texts(app, inputs, config))
    explain(Graph.optimize(app, read, config, passes), svg)


def _ask(
    node: NodeConfig, query: Query, inputs: Mapping[str, Any] | None, svg: Path | None
) -> None:
    """``inputs``: of the query; None if they are kept."""
    if inputs is not None:
        require_inputs(query.app, inputs)
    query.prepare()
    if svg is not None and not svg.parent.is_dir():
        raise InvalidArgument(f"{svg} cannot be written: there is no folder {svg.parent}")
    if not node.encoders:
        check_some_encoder(query.app.used_engines)
    finish(run_here(node, query))
    if svg is not None:
        draw_measured(svg, query)


def _shipped() -> Iterator[tuple[str, list[str], str]]:
    """Name, components and description of each."""
    for name, make in APPLICATIONS.items():
        app = make()
        yield name, [node.name for node in app.nodes], app.description


def _served(url: str, api_key: str | None) -> Iterator[tuple[str, list[str], str]]:
    with NodeClient(url, api_key) as node:
        for one in node.workflows():
            yield one["name"], one["components"], one["description"]


def _show_list(workflows: Iterable[tuple[str, list[str], str]]) -> None:
    listed = table("workflow", "components", "what it does", wrap=("components", "what it does"))
    for name, components, description in workflows:
        listed.add_row(escaped(name), escaped(", ".join(components)), escaped(description))
    output().print(listed)


def _passes(given: str | None, speculate: bool = False) -> OptPass:
    chosen = OptPass()
    if given is not None:
        chosen = OptPass([] if given == "none" else [name.strip() for name in given.split(",")])
    return chosen.speculating() if speculate else chosen
