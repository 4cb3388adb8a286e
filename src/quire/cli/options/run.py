"""The options of ``quire run``, as groups (``options.groups``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from quire.cli.options import shared as o
from quire.cli.options.node_choice import OwnNodeOptions, RunningNodeOptions
from quire.core.config import NodeConfig
from quire.programs import library


def _names(beginning: str) -> list[str]:
    """Return the programs of the library for shell completion."""
    return [name for name in library.LIBRARY if name.startswith(beginning)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNodeOptions:
    """The node that the command starts, and where the program runs on it."""

    own: OwnNodeOptions
    record: o.Record = None
    sandbox: Annotated[
        bool,
        typer.Option(
            "--sandbox", help="Run the program in the sandbox, as a node runs uploaded programs."
        ),
    ] = False

    def config(self) -> NodeConfig:
        """Return the configuration of the node.

        Raises:
            ConfigError: the options describe no node.
        """
        return self.own.config(record_path=self.record)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How the program is launched, and its input and output in the terminal."""

    interactive: o.Interactive = False
    stream: o.Stream = False
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=(1 << 63) - 1, help="Seed of the program's random numbers."),
    ] = None
    detach: Annotated[
        bool,
        typer.Option("--detach", "-d", help="Print the program's id and leave it running."),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """All options, in the order of ``quire run --help``."""

    program: Annotated[
        str | None,
        typer.Argument(
            help="A Python file, a .wasm module, or the name of a program.", autocompletion=_names
        ),
    ] = None
    args: Annotated[
        list[str] | None,
        typer.Argument(help="Arguments of the program, after --; '-- --help' lists them."),
    ] = None
    node: RunNodeOptions
    running: RunningNodeOptions
    launch: LaunchOptions
    list_programs: Annotated[
        bool,
        typer.Option("--list", help="List the programs of the library by theme, and run none."),
    ] = False
    log_level: o.LogLevel = "warning"
