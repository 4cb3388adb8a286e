"""The options for services of programs: their store, MCP servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quire.cli.options.sizes import size_value

_PROGRAMS = "Programs"

VectorStore = Annotated[
    str,
    typer.Option(
        envvar="QUIRE_VECTOR_STORE",
        help="Where programs' vectors are stored: exact (in memory), lance (LanceDB, in the "
        "data directory) or postgresql://... (with pgvector).",
        rich_help_panel=_PROGRAMS,
    ),
]
Search = Annotated[
    str | None,
    typer.Option(
        metavar="DIRECTORY|URL",
        envvar="QUIRE_SEARCH",
        help="What programs can search: a directory of text, Markdown, HTML and PDF files, or "
        "the address of a SearXNG server (http://...).",
        rich_help_panel=_PROGRAMS,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="QUIRE_DATA_DIR",
        help="Directory for programs' stores, files and batches. Without it they are kept in "
        "memory and lost when the node ends.",
        rich_help_panel=_PROGRAMS,
    ),
]
KeptQueryTtl = Annotated[
    float,
    typer.Option(
        "--kept-query-ttl-s",
        min=1,
        envvar="QUIRE_KEPT_QUERY_TTL_S",
        help="Seconds without activity after which a workflow query that has an id is deleted "
        "from the data directory.",
        rich_help_panel=_PROGRAMS,
    ),
]
KeptQueryBytes = Annotated[
    int,
    typer.Option(
        "--kept-query-bytes",
        parser=size_value,
        show_default="256MiB",
        metavar="SIZE",
        envvar="QUIRE_KEPT_QUERY_BYTES",
        help="Largest size of one tenant's workflow queries in the data directory.",
        rich_help_panel=_PROGRAMS,
    ),
]
Workflows = Annotated[
    list[str] | None,
    typer.Option(
        "--workflow",
        metavar="NAME|FILE.py:NAME|FILE.yaml",
        envvar="QUIRE_WORKFLOWS",
        help="A workflow to serve: the name of a shipped one, an App or a LangGraph graph in a "
        "Python file (the file is executed), or a Haystack pipeline (FILE.yaml; join several "
        "with +). Repeatable; default: all shipped ones.",
        rich_help_panel=_PROGRAMS,
    ),
]
Profiles = Annotated[
    list[str] | None,
    typer.Option(
        "--profile",
        metavar="[NAME=]FILE",
        envvar="QUIRE_PROFILES",
        help="A file that 'quire profile' wrote for a model or encoder; workflows use it to "
        "divide batches and to estimate times. NAME: the name under which the model is "
        "served. Repeatable.",
        rich_help_panel=_PROGRAMS,
    ),
]
McpServers = Annotated[
    Path | None,
    typer.Option(
        envvar="QUIRE_MCP_SERVERS",
        help="A TOML file of MCP servers that programs may use; the node starts them.",
        rich_help_panel=_PROGRAMS,
    ),
]
