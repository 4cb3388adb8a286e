"""The ``quire`` command: which commands there are, and how it ends.

Owns exit codes: 0 done; 1 the program or check that was run has failed; 2 the command could not be
carried out (wrong usage, or any error of Quire's own, printed as one line with its remedy);
130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from quire.cli.console import print_error
from quire.cli.demo import demo
from quire.cli.doctor import doctor
from quire.cli.models import models
from quire.cli.processes import attach, kill, logs, ps
from quire.cli.replay import replay
from quire.cli.run import run
from quire.cli.serve import serve
from quire.core.errors import QuireError

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

_NODE = "Work with a node"
_PROGRAMS = "Work with programs"
_MACHINE = "Look around"


def build_app() -> typer.Typer:
    """The command line as a typer application."""
    app = typer.Typer(
        name="quire",
        help="Quire serves LLM programs, not prompts.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode="markdown",
    )
    app.callback()(_root)
    for panel, commands in {
        _NODE: (serve, demo, replay),
        _PROGRAMS: (run, ps, attach, logs, kill),
        _MACHINE: (models, doctor),
    }.items():
        for command in commands:
            app.command(rich_help_panel=panel)(command)
    return app


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
    try:
        build_app()(None if arguments is None else list(arguments))
    except QuireError as exc:
        print_error(exc)
        sys.exit(EXIT_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


__all__ = ["build_app", "main"]
