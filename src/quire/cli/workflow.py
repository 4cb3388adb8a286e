"""``quire workflow``: lists, runs and explains the shipped applications."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from quire.cli import options as o
from quire.cli.client import NodeClient
from quire.cli.configuration import DEFAULT_TENANT, encoder_configs, engine_configs
from quire.cli.console import escaped, output, print_error, print_result, table
from quire.cli.conversation import converse
from quire.cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED
from quire.cli.loading import loading_progress
from quire.cli.log_output import configure_logging, errors_of_starting_raised_only
from quire.client.attachment import Attachment
from quire.core.config import NodeConfig
from quire.core.errors import InvalidArgument, ProgramCancelled, ProgramFailed, ProgramTerminated
from quire.node import Node
from quire.node.documents.readers import DocumentReaders
from quire.programs import workflow as workflows
from quire.programs.services.documents import DocumentService, decoded, kind_of
from quire.programs.workflow import App, Graph, OptPass, find_application
from quire.programs.workflow.applications import APPLICATIONS
from quire.programs.workflow.running import with_texts

Action = Literal["list", "run", "explain"]
SAMPLE_WORDS = 256 * 24
"""Words of the document for which a graph is drawn if none is given."""


def workflow(
    context: typer.Context,
    action: Annotated[Action, typer.Argument(help="list, run or explain.")],
    name: Annotated[
        str | None, typer.Argument(help="The workflow, as 'quire workflow list' shows it.")
    ] = None,
    documents: Annotated[
        list[Path] | None,
        typer.Option(
            help="A text, Markdown, HTML or PDF file, or a folder of such files. Repeatable."
        ),
    ] = None,
    question: Annotated[str | None, typer.Option(help="What is asked.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="COMPONENT.KEY=VALUE",
            help="Configuration for this query, e.g. answer.synthesis=tree. Repeatable.",
        ),
    ] = None,
    passes: Annotated[
        str | None,
        typer.Option(
            help="Passes of the optimiser, separated by commas, or none; default: all of "
            "prune,stages,prefill,pipeline."
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(help="Write the drawing of the graphs to this file.")
    ] = None,
    model: o.ModelOption = None,
    encoder: o.Encoders = None,
    encoder_instances: o.EncoderInstances = None,
    url: o.OptionalUrl = None,
    api_key: o.ApiKey = None,
    log_level: o.LogLevel = "warning",
) -> None:
    """List the workflows, run one, or explain what the optimiser makes of it.

    'run' prints the answer to --question from --documents. It starts a node for the query, which
    --model, --encoder and --encoder-instances configure, or with --url uses a running one. The node
    needs an embedding model, for advanced-rag also a cross-encoder.

    'explain' prints what each pass did to the graph of a query, or why it did nothing, and draws
    the graphs with --svg; it starts no node. Without --documents it takes a document of 6144 words.

    Examples:

        quire workflow list

        quire workflow run naive-rag --encoder ~/models/minilm --documents notes --question "Why?"

        quire workflow run naive-rag --url http://127.0.0.1:8000 --documents notes --question "Why?"

        quire workflow explain naive-rag --documents notes --set answer.synthesis=tree

        quire workflow explain advanced-rag --svg graph.svg
    """
    configure_logging(log_level, log_requests=False)
    _refuse_unread(context, action)
    if action == "list":
        _show_list()
        return
    if name is None:
        raise InvalidArgument(
            f"name a workflow to {action}, or list them with 'quire workflow list'"
        )
    app, chosen = find_application(name), _passes(passes)
    config = _settings(settings or [])
    if action == "explain":
        query = {"question": question or "Who?", "documents": _documents(documents) or _sample()}
        read = asyncio.run(_with_texts(app, query, config))
        _explain(Graph.optimize(app, read, config, chosen), svg)
        return
    if question is None or not documents:
        raise InvalidArgument("'run' needs --question and --documents: give both")
    query = {"question": question, "documents": _documents(documents)}
    if url is not None:
        _refuse_given(context, url)
        arguments = {"query": query, "config": config}
        request = {"program": name, "named_args": arguments}
        _finish(_run_remote(NodeClient(url, api_key), request))
        return
    node = NodeConfig(
        engine_configs(model or (), None),
        encoders=encoder_configs(encoder or (), encoder_instances or ()),
    )
    _finish(_run(node, app, chosen, query, config))


_READ_BY: Mapping[Action, frozenset[str]] = {
    "list": frozenset({"action", "log_level"}),
    "run": frozenset(
        {
            "action", "name", "documents", "question", "settings", "passes", "model", "encoder",
            "encoder_instances", "url", "api_key", "log_level",
        }
    ),
    "explain": frozenset(
        {"action", "name", "documents", "question", "settings", "passes", "svg", "log_level"}
    ),
}  # fmt: skip


def _refuse_unread(context: typer.Context, action: Action) -> None:
    """Refuse what the action does not read, unless it stands in the environment."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in _READ_BY[action] and source is not None and source.name == "COMMANDLINE":
            shown = "a name" if name == "name" else f"--{name.replace('_', '-')}"
            raise InvalidArgument(f"'quire workflow {action}' does not take {shown}: leave it out")


def _refuse_given(context: typer.Context, url: str) -> None:
    """Refuse what only a node of this command takes, unless it stands in the environment."""
    for name in ("passes", "model", "encoder", "encoder_instances"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InvalidArgument(
                f"--{name.replace('_', '-')} is for a node that 'quire workflow run' starts, and "
                f"{url} runs already: leave it out, or leave out --url (QUIRE_URL)"
            )


def _show_list() -> None:
    listed = table("workflow", "components", "what it does", wrap=("components", "what it does"))
    for name, make in APPLICATIONS.items():
        app = make()
        components = ", ".join(node.name for node in app.nodes)
        listed.add_row(name, components, escaped(app.description))
    output().print(listed)


def _explain(graph: Graph, svg: Path | None) -> None:
    p_graph, e_graph = graph.p_graph, graph.e_graph
    output().print(
        f"{len(p_graph.primitives)} primitives and {p_graph.num_edges} dependencies as written, "
        f"{len(e_graph.primitives)} and {e_graph.num_edges} as optimised"
    )
    listed = table("pass", "where", "what it did, or why not", wrap=("what it did, or why not",))
    for note in graph.notes:
        text = note.text if note.applied else f"no: {note.text}"
        listed.add_row(note.rule, escaped(note.where), escaped(text))
    output().print(listed)
    if svg is not None:
        try:
            svg.write_text(graph.explain(), encoding="utf-8")
        except OSError as exc:
            raise InvalidArgument(f"{svg} cannot be written: {exc}") from exc


def _finish(running: Coroutine[Any, Any, dict[str, Any]]) -> None:
    """Wait for the results of a query and print its answer."""
    try:
        results = asyncio.run(running)
    except ProgramCancelled as exc:
        print_error(exc)
        raise typer.Exit(EXIT_INTERRUPTED) from exc
    except (ProgramFailed, ProgramTerminated) as exc:
        print_error(exc)
        raise typer.Exit(EXIT_FAILED) from exc
    print_result(results["answer"])


async def _run(
    config: NodeConfig,
    app: App,
    passes: OptPass,
    query: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> dict[str, Any]:
    node = Node(config)
    with errors_of_starting_raised_only(), loading_progress() as progress:
        await node.start(progress)
    try:
        arguments = (json.dumps(query), json.dumps(changes))
        handle = node.launch(workflows.workflow(app, passes), arguments, tenant=DEFAULT_TENANT)
        results: dict[str, Any] = await handle.result()
        return results
    finally:
        await node.stop()


async def _run_remote(node: NodeClient, request: dict[str, Any]) -> dict[str, Any]:
    with node:
        launched = node.launch(request)
        async with Attachment(node.url, node.headers, launched["id"]) as program:
            results: dict[str, Any] = await converse(program, lambda message: None, None)
            return results


def _passes(given: str | None) -> OptPass:
    if given is None:
        return OptPass()
    return OptPass([] if given == "none" else [name.strip() for name in given.split(",")])


def _settings(given: list[str]) -> dict[str, dict[str, Any]]:
    """``COMPONENT.KEY=VALUE``; a value that is JSON is read as JSON."""
    config: dict[str, dict[str, Any]] = {}
    for setting in given:
        place, equals, text = setting.partition("=")
        component, dot, key = place.partition(".")
        if not (equals and dot and component and key):
            raise InvalidArgument(
                f"--set {setting!r}: write COMPONENT.KEY=VALUE, e.g. answer.synthesis=tree"
            )
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        config.setdefault(component, {})[key] = value
    return config


def _documents(paths: list[Path] | None) -> list[dict[str, str]]:
    """All files, those of folders in the order of their names; hidden ones are left out."""
    files: list[Path] = []
    for path in paths or []:
        inside = (one for one in sorted(path.rglob("*")) if one.is_file())
        shown = (one for one in inside if not one.name.startswith("."))
        files += shown if path.is_dir() else [path]
    found: list[dict[str, str]] = []
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as exc:
            raise InvalidArgument(f"{file} cannot be read: {exc}") from exc
        if kind_of(file.name) == "text":
            found.append({"name": file.name, "text": decoded(str(file), content)})
        else:
            found.append({"name": file.name, "base64": base64.b64encode(content).decode()})
    return found


async def _with_texts(
    app: App, query: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Read the query's documents without a node."""
    readers = DocumentReaders()
    try:
        return await with_texts(DocumentService(readers.read).read, app, query, changes)
    finally:
        await asyncio.to_thread(readers.close)


def _sample() -> list[dict[str, str]]:
    return [{"name": "sample", "text": "word " * SAMPLE_WORDS}]
