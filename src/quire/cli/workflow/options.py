"""The options of ``quire workflow``, as groups, and the refusal of options that an action does not
read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from quire.cli.default_encoders import default_encoders
from quire.cli.options import programs as po
from quire.cli.options import shared as o
from quire.cli.options.groups import given_options, names_of
from quire.cli.options.node_choice import OwnNodeOptions, RunningNodeOptions
from quire.cli.workflow.inputs import query_inputs, settings_by_component
from quire.cli.workflow.running import Bounds
from quire.core.config import NodeConfig
from quire.core.errors import InvalidArgument
from quire.node import SHIPPED_READER
from quire.programs.workflow import App, OptPass
from quire.programs.workflow.applications import APPLICATIONS
from quire.programs.workflow.durable import QueryId

Action = Literal["list", "run", "explain"]


def _names(beginning: str) -> list[str]:
    """Return the shipped workflows for shell completion."""
    return [name for name in APPLICATIONS if name.startswith(beginning)]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions:
    """The inputs of a query, and the configuration of components for it."""

    documents: Annotated[
        list[Path] | None,
        typer.Option(
            help="A text, Markdown, HTML or PDF file, or a folder of such files. Repeatable."
        ),
    ] = None
    question: Annotated[str | None, typer.Option(help="The question.")] = None
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=VALUE",
            help="Another input of the workflow, as text if the input is a text, else as JSON. "
            "Repeatable.",
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="COMPONENT.KEY=VALUE",
            help="Configuration for this query, e.g. answer.synthesis=tree. Repeatable.",
        ),
    ] = None

    def query(self, texts: Collection[str] = ()) -> dict[str, Any]:
        """Return the inputs by name, as far as they are given. ``texts``: those that are texts.

        Raises:
            InvalidArgument: a file cannot be read, or an input has no name.
        """
        return query_inputs(self.inputs or [], self.question, self.documents, texts)

    def config(self) -> dict[str, dict[str, Any]]:
        """Return changes by component.

        Raises:
            InvalidArgument: a setting names no component or no key.
        """
        return settings_by_component(self.settings or [])


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundOptions:
    """Limits on a query's time, tokens and parallelism."""

    deadline_s: Annotated[
        float | None,
        typer.Option(help="Seconds after which the query ends with an error."),
    ] = None
    max_generated_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Largest number of tokens that all models of the query may generate together.",
        ),
    ] = None
    speculate: Annotated[
        bool,
        typer.Option(
            "--speculate/--no-speculate",
            help="Run primitives that are likely to be needed ahead of time, when the node is "
            "idle.",
        ),
    ] = False

    def bounds(self) -> Bounds:
        return {
            "deadline_s": self.deadline_s,
            "max_generated_tokens": self.max_generated_tokens,
            "speculate": self.speculate,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepOptions:
    """Whether the query is kept, so that it can go on after a crash."""

    query_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="Record the query in the data directory under this id; the same command continues "
            "it after an interruption.",
        ),
    ] = None
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Continue the query with this id, with its recorded inputs."
        ),
    ] = None
    repeat_interrupted: Annotated[
        bool,
        typer.Option(
            "--repeat-interrupted",
            help="Call interrupted tools again, although they may have had an effect.",
        ),
    ] = False

    def kept_as(self) -> QueryId | None:
        """Return the id under which the query is kept; None if it is not kept.

        Raises:
            InvalidArgument: two ids are given, or a permission without an id.
        """
        given, resume = self.query_id, self.resume
        if given is not None and resume not in (None, given):
            raise InvalidArgument(f"--id {given} and --resume {resume} are two queries: give one")
        key = resume if resume is not None else given
        if key is None:
            if self.repeat_interrupted:
                raise InvalidArgument(
                    "--repeat-interrupted is for a query with an --id: give it too"
                )
            return None
        return QueryId(key, resume is not None, self.repeat_interrupted)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """How the graph is optimised and drawn."""

    passes: Annotated[
        str | None,
        typer.Option(
            help="Passes of the optimiser, separated by commas, or none; default: those of the "
            "App, which are prune,stages,prefill,pipeline if it names none. --speculate adds "
            "speculate."
        ),
    ] = None
    svg: Annotated[
        Path | None,
        typer.Option(help="Draw the graphs in this file; 'run' adds the measured times."),
    ] = None

    def optimiser(self, own: OptPass) -> OptPass:
        """Return the passes of the optimiser. ``own``: those of the application.

        Raises:
            InvalidArgument: there is no such pass.
        """
        if self.passes is None:
            return own
        return own.only(
            [] if self.passes == "none" else [name.strip() for name in self.passes.split(",")]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowNodeOptions:
    """The node that 'run' starts. 'explain' also divides batches by the profiles."""

    own: OwnNodeOptions
    encoder_dtype: o.EncoderDType = "auto"
    vector_store: po.VectorStore = "exact"
    data_dir: po.DataDir = None
    profile: po.Profiles = None

    def config(self, app: App) -> NodeConfig:
        """Return the configuration of a node for ``app``. If no model is named it serves
        quire-reader, and if no encoder is named the one that a package brings, where ``app`` needs
        them.

        Raises:
            ConfigError: the options describe no node.
        """
        return self.own.config(
            default_model=SHIPPED_READER,
            needs_model=app.needs_model,
            default_encoders=() if self.own.encoder else default_encoders(app.used_engines),
            encoder_dtype=self.encoder_dtype,
            vector_store=self.vector_store,
            data_dir=self.data_dir,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowCommandOptions:
    """All options, in the order of ``quire workflow --help``."""

    action: Annotated[Action, typer.Argument(help="list, run or explain.")]
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE.py:NAME|FILE.yaml",
            autocompletion=_names,
            help="The name of a workflow ('quire workflow list'), an App or a LangGraph graph "
            "in a Python file, or a Haystack pipeline (several: INDEX.yaml+ASK.yaml).",
        ),
    ] = None
    asked: InputOptions
    bounds: BoundOptions
    kept: KeepOptions
    graph: GraphOptions
    node: WorkflowNodeOptions
    running: RunningNodeOptions
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all results, or the list, as JSON.")
    ] = False
    log_level: o.LogLevel = "warning"

    def workflow_name(self) -> str:
        """Return the name of the workflow.

        Raises:
            InvalidArgument: it is missing.
        """
        if self.name is None:
            raise InvalidArgument(
                f"name a workflow to {self.action}, or list them with 'quire workflow list'"
            )
        return self.name


_ALL = names_of(WorkflowCommandOptions)
_READ_BY: Mapping[Action, frozenset[str]] = {
    "list": frozenset({"action", "as_json", "log_level"}) | names_of(RunningNodeOptions),
    "run": _ALL,
    "explain": frozenset({"action", "name", "speculate", "profile", "log_level"})
    | names_of(InputOptions, GraphOptions),
}


def refuse_unread(context: typer.Context, action: Action) -> None:
    """Refuse options that the action does not read, unless they come from the environment.

    Raises:
        InvalidArgument: the command line has an option that the action does not read.
    """
    for name, option in given_options(context, _ALL - _READ_BY[action]).items():
        shown = "a name" if name == "name" else option
        raise InvalidArgument(f"'quire workflow {action}' does not take {shown}: leave it out")
