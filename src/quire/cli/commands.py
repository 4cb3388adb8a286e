"""The subcommands of ``quire``: the module of each, and its line in the overview.

A command's module is imported when the command is used: ``quire --help`` and a shell's completion
should not wait for the import of servers and models.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

_ENVIRONMENT = (
    "Options can also stand in environment variables, such as {}: docs/reference/cli.md has the "
    "name for each."
)


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A command: ``module`` has a function ``name``, whose docstring begins with ``summary``."""

    name: str
    module: str
    summary: str

    def load(self) -> Any:
        """Return the command with its options and arguments. Imports its module."""
        alone = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
        )
        function = getattr(import_module(f"quire.cli.{self.module}"), self.name)
        alone.command(self.name, cls=_Command)(function)
        return get_command(alone)


class _Command(TyperCommand):
    """A command whose ``--help`` fits into 80 columns: the names of environment variables, which
    would be cut, are explained once and listed in the reference. What it says of a wrong value
    repeats the value."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        try:
            return super().make_context(info_name, args, parent=parent, **extra)
        except typer.BadParameter as error:
            error.message = _with_value(error)
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        named = [one for one in self.params if one.envvar and hasattr(one, "show_envvar")]
        for one in named:
            one.show_envvar = False
        if named:
            self.epilog = _ENVIRONMENT.format(named[0].envvar)
        super().format_help(ctx, formatter)


def _with_value(error: typer.BadParameter) -> str:
    """Return the message of ``error`` with the value that it is about."""
    message = error.message.removeprefix("Value error, ")  # a word of pydantic's, not of ours
    found = getattr(error.__cause__, "errors", None)  # pydantic's, imported only by now
    if found is None or not message.startswith("Input should be"):
        return message
    should = message.removeprefix("Input ").partition(", unable to parse")[0]
    return f"{found()[0]['input']!r} {should}"


class UnloadedCommand(TyperCommand):
    """Stands for a command in the overview; the command itself parses its arguments and runs."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        command = SUBCOMMANDS[self.name or ""].load()
        return command.make_context(info_name, args, parent=parent, **extra)


PANELS = {
    "Work with a node": (
        Subcommand("serve", "serve", "Serve models and programs over HTTP until interrupted."),
        Subcommand(
            "router",
            "router",
            "Serve the API of many nodes at one address; a strategy chooses the node of each "
            "request.",
        ),
        Subcommand(
            "demo",
            "demo",
            "Start a node with the shipped model, run a chat and an agent on it at the same time, "
            "and report.",
        ),
        Subcommand(
            "replay",
            "replay",
            "Replay an event log and report where this release decides differently.",
        ),
        Subcommand(
            "trace",
            "trace",
            "Write what a program did and when as a trace that ui.perfetto.dev opens.",
        ),
        Subcommand(
            "sim",
            "sim.command",
            "Simulate programs in virtual time and report how long they take under each policy.",
        ),
        Subcommand(
            "profile",
            "profile.command",
            "Measure what an engine's batches cost, for --profile of 'serve', 'workflow' and "
            "'sim'.",
        ),
    ),
    "Work with a cluster": (
        Subcommand(
            "up",
            "cluster_up",
            "Start the cluster that a file describes, or change a running one after an edit of "
            "the file.",
        ),
        Subcommand(
            "status",
            "cluster",
            "Show the processes of a cluster: machine, start time, number of restarts, and how "
            "busy the nodes are.",
        ),
        Subcommand(
            "down",
            "cluster",
            "End a cluster: drain and end its processes, routers first, then its Ray; remove its "
            "files.",
        ),
    ),
    "Work with programs": (
        Subcommand(
            "new",
            "new",
            "Create a program: a folder with NAME.py, a test that passes at once, and a README.md.",
        ),
        Subcommand(
            "run", "run", "Run a program: show its messages as they arrive, then its result."
        ),
        Subcommand(
            "workflow",
            "workflow.command",
            "List the workflows, run one, or explain how the optimiser changes its graph.",
        ),
        Subcommand(
            "push",
            "push",
            "Upload programs to a running node, to be launched by name; list the uploaded ones.",
        ),
        Subcommand(
            "ps",
            "processes",
            "List the programs, workflows and sessions of a running node, running and recently "
            "ended.",
        ),
        Subcommand(
            "top",
            "top.command",
            "Watch a running node: its engines, and for each program its state, its service and "
            "what it waits for.",
        ),
        Subcommand(
            "attach",
            "processes",
            "Show a running program's messages as they arrive, then its result.",
        ),
        Subcommand(
            "logs",
            "logs",
            "Print a program's log: its log entries, its output, and the node's notes about it.",
        ),
        Subcommand(
            "kill",
            "processes",
            "End programs and sessions: commands are cancelled, and resources are freed.",
        ),
    ),
    "Look around": (
        Subcommand(
            "models",
            "models",
            "List the shipped models and model directories, or the models of a running node "
            "(--url).",
        ),
        Subcommand(
            "doctor",
            "doctor",
            "Report what this machine has, what Quire uses of it, and which optional packages are "
            "missing.",
        ),
    ),
    "Set up": (
        Subcommand(
            "compile",
            "compile",
            "Compile the control layer to machine code: each call and token then takes less "
            "processor time.",
        ),
    ),
}
"""The commands, by the headings of the overview."""

SUBCOMMANDS = {one.name: one for commands in PANELS.values() for one in commands}
