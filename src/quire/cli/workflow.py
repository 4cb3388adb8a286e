"""``quire workflow``: lists, runs and explains the shipped applications."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
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
from quire.cli.workflow_profiles import read_profiles
from quire.client import Client
from quire.core.config import NodeConfig
from quire.core.errors import InvalidArgument, ProgramCancelled, ProgramFailed, ProgramTerminated
from quire.node import Node
from quire.node.documents.readers import DocumentReaders
from quire.programs.services.documents import DocumentService, decoded, kind_of
from quire.programs.workflow import App, Graph, OptPass, find_application
from quire.programs.workflow.applications import APPLICATIONS
from quire.programs.workflow.graph import PrimitiveGraph
from quire.programs.workflow.passes.note import folded
from quire.programs.workflow.profiles import use_profiles
from quire.programs.workflow.query import Query
from quire.programs.workflow.running import with_texts
from quire.programs.workflow.timing import measured, predicted, written
from quire.programs.workflow.values import ValueType
from quire.programs.workflow.watching import Step

Action = Literal["list", "run", "explain"]


class Bounds(TypedDict):
    """Of one query."""

    deadline_s: float | None
    max_generated_tokens: int | None


SAMPLE_WORDS = 256 * 24
"""Words of the document for which a graph is drawn if none is given."""


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
    passes: Annotated[
        str | None,
        typer.Option(
            help="Passes of the optimiser, separated by commas, or none; default: all of "
            "prune,stages,prefill,pipeline."
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
    profile: po.Profiles = None,
    url: o.OptionalUrl = None,
    api_key: o.ApiKey = None,
    log_level: o.LogLevel = "warning",
) -> None:
    """List the workflows, run one, or explain what the optimiser makes of it.

    'run' prints the answer to --question from --documents. It starts a node for the query, which
    --model, --encoder, --encoder-instances, --vector-store and --search configure, or with --url
    uses a running one. naive-rag needs an embedding model, advanced-rag and contextual-retrieval
    also a cross-encoder, search-generation what is searched. 'list' shows with --url what that
    node serves.

    --profile takes files of 'quire profile', by which 'run' and 'explain' divide batches.

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
    config = _settings(settings or [])
    query = _inputs(inputs or [], question, documents)
    bounds: Bounds = {"deadline_s": deadline_s, "max_generated_tokens": max_generated_tokens}
    if action == "run" and url is not None:
        _refuse_given(context, url)
        _finish(_run_remote(Client(url, api_key), name, query, config, bounds))
        return
    app = find_application(name)
    if action == "explain":
        use_profiles(app, read_profiles(profile or ()))
        read = asyncio.run(_with_texts(app, {**_examples(app), **query}, config))
        _explain(Graph.optimize(app, read, config, _passes(passes)), svg)
        return
    node = NodeConfig(
        engine_configs(model or (), None),
        encoders=encoder_configs(encoder or (), encoder_instances or ()),
        vector_store=vector_store,
        search=search,
    )
    use_profiles(app, read_profiles(profile or (), node.engines, node.encoders))
    asked = Query(app, query, config, passes=_passes(passes), **bounds)
    asked.prepare()
    if svg is not None and not svg.parent.is_dir():
        raise InvalidArgument(f"{svg} cannot be written: there is no folder {svg.parent}")
    _finish(_run(node, asked))
    if svg is not None:
        _draw_measured(svg, asked)


_READ_BY: Mapping[Action, frozenset[str]] = {
    "list": frozenset({"action", "url", "api_key", "log_level"}),
    "run": frozenset(
        {
            "action", "name", "documents", "question", "inputs", "settings", "passes", "model",
            "encoder", "encoder_instances", "vector_store", "search", "profile", "svg", "url",
            "api_key", "log_level", "deadline_s", "max_generated_tokens",
        }
    ),
    "explain": frozenset(
        {
            "action", "name", "documents", "question", "inputs", "settings", "passes", "svg",
            "profile", "log_level",
        }
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
    for name in (
        "passes",
        "model",
        "encoder",
        "encoder_instances",
        "vector_store",
        "search",
        "profile",
        "svg",
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


def _explain(graph: Graph, svg: Path | None) -> None:
    p_graph, e_graph = graph.p_graph, graph.e_graph
    output().print(
        f"{len(p_graph.primitives)} primitives and {p_graph.num_edges} dependencies as written, "
        f"{len(e_graph.primitives)} and {e_graph.num_edges} as optimised"
    )
    whole, best = (predicted(one, graph.app.engines) for one in (p_graph, e_graph))
    if whole is not None and best is not None:
        output().print(
            f"by profile {written(whole.total_s)} as written, {written(best.total_s)} as "
            f"optimised, which waits for {escaped(_of_components(e_graph, best.way))}"
        )
    listed = table("pass", "where", "what it did, or why not", wrap=("what it did, or why not",))
    for note in folded(graph.notes):
        text = note.text if note.applied else f"no: {note.text}"
        listed.add_row(note.rule, escaped(note.where), escaped(text))
    output().print(listed)
    if svg is not None:
        _draw(svg, graph)


def _of_components(graph: PrimitiveGraph, way: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(graph.primitives[one].node for one in way))


def _draw(svg: Path, graph: Graph, steps: Sequence[Step] = ()) -> None:
    try:
        svg.write_text(graph.explain(steps), encoding="utf-8")
    except OSError as exc:
        raise InvalidArgument(f"{svg} cannot be written: {exc}") from exc


def _draw_measured(svg: Path, asked: Query) -> None:
    """The graph of a query that has run, with a line on stderr about the whole."""
    assert asked.graph is not None, "a query that has ended has a graph"
    graph, steps = asked.graph.e_graph, asked.log.steps
    _draw(svg, asked.graph, steps)
    took = measured(graph, steps)
    if took is not None:
        messages().print(
            f"{len(steps)} primitives took {written(took.total_s)}; what it waited for: "
            f"{escaped(_of_components(graph, took.way))}; drawn in {svg}"
        )


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
    query: Mapping[str, Any],
    config: Mapping[str, Any],
    bounds: Bounds,
) -> dict[str, Any]:
    async with node:
        return await node.query(name, query, config=config, **bounds)


def _passes(given: str | None) -> OptPass:
    if given is None:
        return OptPass()
    return OptPass([] if given == "none" else [name.strip() for name in given.split(",")])


def _inputs(given: list[str], question: str | None, documents: list[Path] | None) -> dict[str, Any]:
    """The query's inputs by name, as far as they are given."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InvalidArgument(f"--input {text!r}: write NAME=VALUE, e.g. city=Oslo")
        found[name] = _value(value)
    if question is not None:
        found["question"] = question
    if documents:
        found["documents"] = _documents(documents)
    return found


def _examples(app: App) -> dict[str, Any]:
    """Inputs for a drawing."""
    samples: Mapping[ValueType, Any] = {
        ValueType.TEXT: "Who?",
        ValueType.TEXTS: ["Who?"],
        ValueType.BOOLEAN: True,
        ValueType.OBJECT: {},
        ValueType.DOCUMENTS: [{"name": "sample", "text": "word " * SAMPLE_WORDS}],
    }
    return {name: samples.get(kind) for name, kind in app.query_inputs.items()}


def _value(text: str) -> Any:
    """The value of a setting; what is JSON is read as JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _settings(given: list[str]) -> dict[str, dict[str, Any]]:
    """``COMPONENT.KEY=VALUE`` as changes by component."""
    config: dict[str, dict[str, Any]] = {}
    for setting in given:
        place, equals, text = setting.partition("=")
        component, dot, key = place.partition(".")
        if not (equals and dot and component and key):
            raise InvalidArgument(
                f"--set {setting!r}: write COMPONENT.KEY=VALUE, e.g. answer.synthesis=tree"
            )
        config.setdefault(component, {})[key] = _value(text)
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
