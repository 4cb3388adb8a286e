"""``quire workflow``: lists, runs and explains the shipped applications."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import typer

from quire.cli import options as o
from quire.cli import program_options as po
from quire.cli.client import NodeClient
from quire.cli.configuration import DEFAULT_TENANT, encoder_configs, engine_configs
from quire.cli.console import escaped, messages, output, print_error, print_result, table
from quire.cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED
from quire.cli.loading import loading_progress
from quire.cli.log_output import configure_logging, errors_of_starting_raised_only
from quire.cli.mcp_servers import read_mcp_servers
from quire.cli.workflow_graphs import draw_measured, explain
from quire.cli.workflow_inputs import (
    example_inputs,
    query_inputs,
    require_inputs,
    settings_by_component,
    with_document_texts,
)
from quire.cli.workflow_profiles import read_profiles
from quire.client import Client
from quire.core.config import NodeConfig
from quire.core.errors import InvalidArgument, ProgramCancelled, ProgramFailed, ProgramTerminated
from quire.node import SHIPPED_READER, Node
from quire.programs.workflow import Graph, OptPass, StepLog, find_application
from quire.programs.workflow.applications import APPLICATIONS
from quire.programs.workflow.durable import QueryId
from quire.programs.workflow.profiles import use_profiles
from quire.programs.workflow.query import Query
from quire.programs.workflow.speculation import SpeculationFigures

Action = Literal["list", "run", "explain"]


class Bounds(TypedDict):
    """Of one query."""

    deadline_s: float | None
    max_generated_tokens: int | None
    speculate: bool


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
    --model, --encoder, --encoder-instances, --vector-store, --search and --mcp-servers configure,
    or with --url uses a running one. naive-rag needs an embedding model, advanced-rag and
    contextual-retrieval also a cross-encoder, search-generation what is searched. 'list' shows with
    --url what that node serves.

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
    _refuse_unread(context, action)
    if action == "list":
        _show_list(_served(url, api_key) if url else _shipped())
        return
    if name is None:
        raise InvalidArgument(
            f"name a workflow to {action}, or list them with 'quire workflow list'"
        )
    config = settings_by_component(settings or [])
    query = query_inputs(inputs or [], question, documents)
    kept_as = _kept_as(query_id, resume, repeat_interrupted)
    asked_for = None if resume is not None and not query else query
    bounds: Bounds = {
        "deadline_s": deadline_s,
        "max_generated_tokens": max_generated_tokens,
        "speculate": speculate,
    }
    if action == "run" and url is not None:
        _refuse_given(context, url)
        _finish(_run_remote(Client(url, api_key), name, asked_for, config, bounds, kept_as))
        return
    app = find_application(name)
    if action == "explain":
        use_profiles(app, read_profiles(profile or ()))
        read = asyncio.run(with_document_texts(app, {**example_inputs(app), **query}, config))
        chosen = _passes(passes).speculating() if speculate else _passes(passes)
        explain(Graph.optimize(app, read, config, chosen), svg)
        return
    node = NodeConfig(
        engine_configs(model or (SHIPPED_READER,), None),
        encoders=encoder_configs(encoder or (), encoder_instances or ()),
        vector_store=vector_store,
        search=search,
        data_dir=data_dir,
        mcp_servers=read_mcp_servers(mcp_servers, [DEFAULT_TENANT]),
    )
    use_profiles(app, read_profiles(profile or (), node.engines, node.encoders))
    if asked_for is not None:
        require_inputs(app, asked_for)
    asked = Query(
        app, asked_for, config, passes=_passes(passes), name=kept_as, log=ShownLog(), **bounds
    )
    asked.prepare()
    if svg is not None and not svg.parent.is_dir():
        raise InvalidArgument(f"{svg} cannot be written: there is no folder {svg.parent}")
    _finish(_run(node, asked))
    if svg is not None:
        draw_measured(svg, asked)


_READ_BY: Mapping[Action, frozenset[str]] = {
    "list": frozenset({"action", "url", "api_key", "log_level"}),
    "run": frozenset(
        {
            "action", "name", "documents", "question", "inputs", "settings", "passes", "model",
            "encoder", "encoder_instances", "vector_store", "search", "profile", "svg", "url",
            "api_key", "log_level", "deadline_s", "max_generated_tokens", "speculate", "query_id",
            "resume", "repeat_interrupted", "data_dir", "mcp_servers",
        }
    ),
    "explain": frozenset(
        {
            "action", "name", "documents", "question", "inputs", "settings", "passes", "speculate",
            "svg", "profile", "log_level",
        }
    ),
}  # fmt: skip


_SHOWN: Mapping[str, str] = {"query_id": "id"}
"""Options whose names are not those of their parameters."""


class ShownLog(StepLog):
    """Tells on stderr that a query goes on."""

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


def _kept_as(query_id: str | None, resume: str | None, repeat: bool) -> QueryId | None:
    if query_id is not None and resume not in (None, query_id):
        raise InvalidArgument(f"--id {query_id} and --resume {resume} are two queries: give one")
    key = resume if resume is not None else query_id
    if key is None:
        if repeat:
            raise InvalidArgument("--repeat-interrupted is for a query with an --id: give it too")
        return None
    return QueryId(key, resume is not None, repeat)


def _refuse_unread(context: typer.Context, action: Action) -> None:
    """Refuse what the action does not read, unless it stands in the environment."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in _READ_BY[action] and source is not None and source.name == "COMMANDLINE":
            shown = "a name" if name == "name" else f"--{_SHOWN.get(name, name).replace('_', '-')}"
            raise InvalidArgument(f"'quire workflow {action}' does not take {shown}: leave it out")


def _refuse_given(context: typer.Context, url: str) -> None:
    """Refuse what only a node of this command takes, unless it stands in the environment."""
    for name in (
        "passes",
        "model",
        "encoder",
        "encoder_instances",
        "vector_store",
        "search",
        "profile",
        "svg",
        "data_dir",
        "mcp_servers",
    ):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InvalidArgument(
                f"--{name.replace('_', '-')} is for a node that 'quire workflow run' starts, and "
                f"{url} runs already: leave it out, or leave out --url (QUIRE_URL)"
            )


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


def _finish(running: Coroutine[Any, Any, dict[str, Any]]) -> None:
    """Wait for the results of a query and print its answer, or all of them if it has none of that
    name."""
    try:
        results = asyncio.run(running)
    except ProgramCancelled as exc:
        print_error(exc)
        raise typer.Exit(EXIT_INTERRUPTED) from exc
    except (ProgramFailed, ProgramTerminated) as exc:
        print_error(exc)
        raise typer.Exit(EXIT_FAILED) from exc
    print_result(results.get("answer", results))


async def _run(config: NodeConfig, query: Query) -> dict[str, Any]:
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


async def _run_remote(
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


def _passes(given: str | None) -> OptPass:
    if given is None:
        return OptPass()
    return OptPass([] if given == "none" else [name.strip() for name in given.split(",")])
