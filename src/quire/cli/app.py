"""The ``quire`` command: its subcommands, and its exit status (``exit_codes``).

Any error of Quire's own is printed as one line with its remedy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from quire.cli.compiled_control import choose_form
from quire.cli.console import print_error
from quire.cli.exit_codes import EXIT_ERROR, EXIT_INTERRUPTED
from quire.cli.foreign_options import refuse_foreign
from quire.core.errors import QuireError

COMMANDS = {
    "Work with a node": {
        "serve": "quire.cli.serve",
        "router": "quire.cli.router",
        "demo": "quire.cli.demo",
        "replay": "quire.cli.replay",
        "trace": "quire.cli.trace",
        "sim": "quire.cli.sim",
        "profile": "quire.cli.profile",
    },
    "Work with a cluster": {
        "up": "quire.cli.cluster",
        "status": "quire.cli.cluster",
        "down": "quire.cli.cluster",
    },
    "Work with programs": {
        "new": "quire.cli.new",
        "run": "quire.cli.run",
        "workflow": "quire.cli.workflow",
        "push": "quire.cli.processes",
        "ps": "quire.cli.processes",
        "top": "quire.cli.top",
        "attach": "quire.cli.processes",
        "logs": "quire.cli.processes",
        "kill": "quire.cli.processes",
    },
    "Look around": {
        "models": "quire.cli.models",
        "doctor": "quire.cli.doctor",
    },
    "Set up": {
        "compile": "quire.cli.compile",
    },
}
"""The commands under their headings, each with the module that has a function of its name."""


class _Command(TyperCommand):
    """Its ``--help`` fits into 80 columns: names of environment variables, which would be cut
    there, are told once and stand in the reference."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        named = [one for one in self.params if one.envvar and hasattr(one, "show_envvar")]
        for one in named:
            one.show_envvar = False
        if named:
            self.epilog = _ENVIRONMENT.format(named[0].envvar)
        super().format_help(ctx, formatter)


_ENVIRONMENT = (
    "Options can also stand in environment variables, such as {}: docs/reference/cli.md has the "
    "name for each."
)


def build_app(only: str | None = None) -> typer.Typer:
    """The command line as a typer application, whole or with the command ``only`` alone.

    Only the modules of the commands in it are imported: a server should not wait for the import of
    the client library that the demonstration uses.
    """
    app = typer.Typer(
        name="quire",
        help="Quire serves LLM programs, not prompts.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=only is None,
        rich_markup_mode="markdown",
    )
    app.callback()(_root)
    for panel, commands in COMMANDS.items():
        for name, module in commands.items():
            if only in (None, name):
                command = getattr(import_module(module), name)
                app.command(name, cls=_Command, rich_help_panel=panel)(command)
    return app


def _named(arguments: Sequence[str]) -> str | None:
    """The command that ``arguments`` begin with, or ``None``."""
    names = {name for commands in COMMANDS.values() for name in commands}
    return arguments[0] if arguments and arguments[0] in names else None


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quire {version('quire')}")
        raise typer.Exit


def _root(
    version_: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Quire serves LLM programs, not prompts."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit the process with its status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        choose_form()
        if _named(given) == "serve":
            refuse_foreign(given[1:])
        build_app(_named(given))(given, prog_name="quire")
    except QuireError as exc:
        print_error(exc)
        sys.exit(EXIT_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
