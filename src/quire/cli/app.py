"""The ``quire`` command: its subcommands, and its exit status (``exit_codes``).

Any error of Quire's own is printed as one line with its remedy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from quire.cli.commands import PANELS, SUBCOMMANDS, UnloadedCommand
from quire.cli.compiled_control import choose_form
from quire.cli.console import print_error
from quire.cli.exit_codes import EXIT_ERROR, EXIT_INTERRUPTED
from quire.cli.options.foreign import refuse_foreign
from quire.cli.options.words import in_options
from quire.cli.shell_completion import mend_zsh
from quire.cli.signals import ended_like_ctrl_c
from quire.core.errors import ConfigError, ModelError, QuireError

SUMMARY = (
    "An LLM inference server with the OpenAI and Anthropic HTTP APIs, which also runs programs "
    "next to the engine."
)


def build_app() -> typer.Typer:
    """Return the command line as a typer application. Only the command that is used is imported."""
    mend_zsh()
    app = typer.Typer(
        name="quire",
        help=SUMMARY,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    app.callback()(_root)
    for panel, commands in PANELS.items():
        for one in commands:
            app.command(one.name, cls=UnloadedCommand, help=one.summary, rich_help_panel=panel)(
                _unloaded
            )
    return app


def _unloaded() -> None:
    """Stand in for a command that is not loaded; never called."""
    raise AssertionError("UnloadedCommand has made no context of the command's own")


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
    """The options of ``quire`` itself."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit the process with its status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with ended_like_ctrl_c():
            choose_form()
            if given[:1] == ["serve"]:
                refuse_foreign(given[1:])
            build_app()(given, prog_name="quire")
    except (ConfigError, ModelError) as exc:
        print_error(type(exc)(in_options(exc.message, _options(given))))
        sys.exit(EXIT_ERROR)
    except QuireError as exc:
        print_error(exc)
        sys.exit(EXIT_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _options(given: Sequence[str]) -> dict[str, str]:
    """Return the options of the command in ``given``, by the names of their parameters."""
    name = next((one for one in given if one in SUBCOMMANDS), None)
    if name is None:
        return {}
    parameters = SUBCOMMANDS[name].load().params
    return {one.name: max(one.opts, key=len) for one in parameters if one.opts[0][0] == "-"}
