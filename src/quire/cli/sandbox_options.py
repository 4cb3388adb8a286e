"""The options of ``quire serve`` about programs that are not trusted; see ``quire.cli.options``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quire.cli.sizes import format_size, size_value
from quire.core.config import SandboxConfig

_DEFAULTS = SandboxConfig()
_PANEL = "Sandbox"
_LEAST_MEMORY_BYTES = 24 << 20
"""Python itself takes as much before a program has begun."""


def _memory(value: object) -> int:
    size = size_value(value)
    if size < _LEAST_MEMORY_BYTES:
        raise typer.BadParameter(
            f"{value} is less than {format_size(_LEAST_MEMORY_BYTES)}, which Python takes before a "
            "program has begun"
        )
    return size


Sandbox = Annotated[
    bool,
    typer.Option(
        "--sandbox/--no-sandbox",
        envvar="QUIRE_SANDBOX",
        help="Run programs that callers bring along in the sandbox, or refuse them.",
        rich_help_panel=_PANEL,
    ),
]
Processes = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="QUIRE_SANDBOX_PROCESSES",
        help="Processes that programs are spread over; each runs one at a time.",
        rich_help_panel=_PANEL,
    ),
]
Warm = Annotated[
    int,
    typer.Option(
        min=0,
        envvar="QUIRE_SANDBOX_WARM",
        help="Instances of each process that wait for a launch.",
        rich_help_panel=_PANEL,
    ),
]
Memory = Annotated[
    int,
    typer.Option(
        parser=_memory,
        show_default=format_size(_DEFAULTS.max_memory_bytes),
        metavar="SIZE",
        envvar="QUIRE_SANDBOX_MEMORY",
        help="Memory of one program.",
        rich_help_panel=_PANEL,
    ),
]
TurnMs = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="QUIRE_SANDBOX_TURN_MS",
        help="Milliseconds that a program may compute without awaiting.",
        rich_help_panel=_PANEL,
    ),
]
CpuMs = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="QUIRE_SANDBOX_CPU_MS",
        help="Milliseconds that a program may compute, all in all.",
        rich_help_panel=_PANEL,
    ),
]
Calls = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="QUIRE_SANDBOX_CALLS",
        help="Calls that a program may make in a second.",
        rich_help_panel=_PANEL,
    ),
]
Requests = Annotated[
    int,
    typer.Option(
        min=0,
        envvar="QUIRE_SANDBOX_REQUESTS",
        help="HTTP requests that a program may have under way; 0: none at all.",
        rich_help_panel=_PANEL,
    ),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--sandbox-host",
        envvar="QUIRE_SANDBOX_HOSTS",
        help="A host that programs may ask for in their manifests, e.g. *.example.org. Repeatable; "
        "default: any public one.",
        rich_help_panel=_PANEL,
    ),
]
PrivateHosts = Annotated[
    bool,
    typer.Option(
        "--sandbox-private-hosts",
        envvar="QUIRE_SANDBOX_PRIVATE_HOSTS",
        help="Let programs reach loopback and private addresses too.",
        rich_help_panel=_PANEL,
    ),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(
        envvar="QUIRE_SANDBOX_CACHE_DIR",
        help="Where what is built once is kept; default: ~/.cache/quire.",
        rich_help_panel=_PANEL,
    ),
]
UploadBytes = Annotated[
    int,
    typer.Option(
        parser=size_value,
        show_default=format_size(_DEFAULTS.max_upload_bytes),
        metavar="SIZE",
        envvar="QUIRE_MAX_UPLOAD_BYTES",
        help="Longest code of a program.",
        rich_help_panel=_PANEL,
    ),
]
