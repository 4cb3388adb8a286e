"""The options for services of programs: their store, MCP servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_PROGRAMS = "Programs"

DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="QUIRE_DATA_DIR",
        help="Directory for programs' stores, files and batches; without it they are lost when "
        "the node ends.",
        rich_help_panel=_PROGRAMS,
    ),
]
McpServers = Annotated[
    Path | None,
    typer.Option(
        envvar="QUIRE_MCP_SERVERS",
        help="A TOML file of MCP servers that the node starts for its programs.",
        rich_help_panel=_PROGRAMS,
    ),
]
