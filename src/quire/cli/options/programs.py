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
        help="Where programs' vectors are kept: exact (memory), lance (LanceDB, in the data "
        "directory) or postgresql://... (with pgvector).",
        rich_help_panel=_PROGRAMS,
    ),
]
Search = Annotated[
    str | None,
    typer.Option(
        metavar="DIRECTORY|URL",
        envvar="QUIRE_SEARCH",
        help="What programs search: the text, Markdown, HTML and PDF files of a directory, or the "
        "address of a SearXNG server (http://...).",
        rich_help_panel=_PROGRAMS,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="QUIRE_DATA_DIR",
        help="Directory for programs' stores, files and batches; without it they are lost when "
        "the node ends.",
        rich_help_panel=_PROGRAMS,
    ),
]
KeptQueryTtl = Annotated[
    float,
    typer.Option(
        "--kept-query-ttl-s",
        min=1,
        envvar="QUIRE_KEPT_QUERY_TTL_S",
        help="Seconds for which the data directory keeps a workflow's query that was given an id, "
        "since it did something last.",
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
        help="Most that the data directory keeps of such queries of one tenant.",
        rich_help_panel=_PROGRAMS,
    ),
]
Workflows = Annotated[
    list[str] | None,
    typer.Option(
        "--workflow",
        metavar="NAME|FILE.py:NAME|FILE.yaml",
        envvar="QUIRE_WORKFLOWS",
        help="A workflow to serve: a shipped one, the App of a file, which is executed, or a "
        "pipeline of Haystack (FILE.yaml, several joined by +). Repeatable; default: all shipped.",
        rich_help_panel=_PROGRAMS,
    ),
]
Profiles = Annotated[
    list[str] | None,
    typer.Option(
        "--profile",
        metavar="[NAME=]FILE",
        envvar="QUIRE_PROFILES",
        help="What 'quire profile' wrote of a model or encoder, by which workflows are divided and "
        "explained; NAME: what it is served as. Repeatable.",
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
