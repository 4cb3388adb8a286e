"""The options of what ``quire serve`` does beyond a node: HTTP, and who may call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quire.cli.sizes import format_size, size_value
from quire.core.config import ServerConfig

_HTTP = "HTTP"
_ACCESS = "Access"

_SERVER_DEFAULTS = ServerConfig()

Host = Annotated[
    str,
    typer.Option(envvar="QUIRE_HOST", help="Address to listen on.", rich_help_panel=_HTTP),
]
Port = Annotated[
    int,
    typer.Option(
        min=0,
        max=65535,
        envvar="QUIRE_PORT",
        help="Port to listen on; 0: any free one.",
        rich_help_panel=_HTTP,
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        envvar="QUIRE_ALLOWED_HOSTS",
        help="A further Host header to answer to. Repeatable.",
        rich_help_panel=_HTTP,
    ),
]
CorsOrigins = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin",
        envvar="QUIRE_CORS_ORIGINS",
        help="An origin whose pages may call this node. Repeatable; none by default.",
        rich_help_panel=_HTTP,
    ),
]
ServerApiKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key",
        envvar="QUIRE_API_KEY",
        help="A key that callers must send. Repeatable.",
        rich_help_panel=_ACCESS,
    ),
]
ApiKeysFile = Annotated[
    Path | None,
    typer.Option(
        envvar="QUIRE_API_KEYS_FILE",
        help="A TOML file of tenants with their keys, weights and quotas.",
        rich_help_panel=_ACCESS,
    ),
]
Unauthenticated = Annotated[
    bool,
    typer.Option(
        "--no-auth",
        envvar="QUIRE_NO_AUTH",
        help="Listen on other than loopback addresses without any API key.",
        rich_help_panel=_ACCESS,
    ),
]
MaxRequests = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="QUIRE_MAX_REQUESTS",
        help="Requests that run at once; further ones are told to try again.",
        rich_help_panel=_HTTP,
    ),
]
MaxConnections = Annotated[
    int | None,
    typer.Option(
        min=64,
        show_default="what the limit of open files leaves room for",
        envvar="QUIRE_MAX_CONNECTIONS",
        help="Clients that may be connected, asking or not; beyond it silent ones are closed.",
        rich_help_panel=_HTTP,
    ),
]
MaxBodyBytes = Annotated[
    int,
    typer.Option(
        parser=size_value,
        show_default=format_size(_SERVER_DEFAULTS.max_body_bytes),
        metavar="SIZE",
        envvar="QUIRE_MAX_BODY_BYTES",
        help="Longest body of a request.",
        rich_help_panel=_HTTP,
    ),
]
HeadTimeout = Annotated[
    float,
    typer.Option(
        min=0.1,
        envvar="QUIRE_HEAD_TIMEOUT",
        help="Seconds within which a new connection must have sent the head of a request.",
        rich_help_panel=_HTTP,
    ),
]
BodyTimeout = Annotated[
    float,
    typer.Option(
        min=0.1,
        envvar="QUIRE_BODY_TIMEOUT",
        help="Seconds within which the body of a request must arrive.",
        rich_help_panel=_HTTP,
    ),
]
WriteTimeout = Annotated[
    float,
    typer.Option(
        min=0.1,
        envvar="QUIRE_WRITE_TIMEOUT",
        help="Seconds that one write to a slow reader may take before its call is ended.",
        rich_help_panel=_HTTP,
    ),
]
ResponseTtl = Annotated[
    float,
    typer.Option(
        min=1.0,
        envvar="QUIRE_RESPONSE_TTL",
        help="Seconds that a stored response stays without being used.",
        rich_help_panel=_HTTP,
    ),
]
MaxStoredResponses = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="QUIRE_MAX_STORED_RESPONSES",
        help="Stored responses that a tenant may have; more push out those used longest ago.",
        rich_help_panel=_HTTP,
    ),
]
SessionTtl = Annotated[
    float,
    typer.Option(
        min=1.0,
        envvar="QUIRE_SESSION_TTL",
        help="Seconds after which an idle session ends; a later call of its name opens a new one.",
        rich_help_panel=_HTTP,
    ),
]
DrainTimeout = Annotated[
    float,
    typer.Option(
        min=0.0,
        envvar="QUIRE_DRAIN_TIMEOUT",
        help="Seconds that running work may take to finish after the first signal.",
        rich_help_panel=_HTTP,
    ),
]
AllowUpload = Annotated[
    bool,
    typer.Option(
        "--allow-upload",
        envvar="QUIRE_ALLOW_UPLOAD",
        help="Let callers launch Python source, which runs with the rights of this process.",
        rich_help_panel=_ACCESS,
    ),
]
LogRequests = Annotated[
    bool,
    typer.Option(
        "--log-requests/--no-log-requests",
        envvar="QUIRE_LOG_REQUESTS",
        help="One JSON line on stdout for each finished request.",
    ),
]
