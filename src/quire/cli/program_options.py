"""The options of what programs find beside the model: their store, MCP servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_PROGRAMS = "Programs"

DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="QUIRE_DATA_DIR",
        help="Where programs' stores, files and batches are kept over restarts; without it they go "
        "with the node.",
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
