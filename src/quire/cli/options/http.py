"""The options of ``quire serve`` about HTTP and access."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quire.cli.options.sizes import size_value
from quire.core.config import KVTransportName, ServerConfig
from quire.core.sizes import format_size

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
        help="A further Host header to accept. Repeatable.",
        rich_help_panel=_HTTP,
    ),
]
CorsOrigins = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin",
        envvar="QUIRE_CORS_ORIGINS",
        help="A web origin that may call this node (CORS). Repeatable; default: none.",
        rich_help_panel=_HTTP,
    ),
]
ServerApiKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key",
        envvar="QUIRE_API_KEY",
        help="An API key that clients must send. Repeatable.",
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
ClusterKeyFile = Annotated[
    Path | None,
    typer.Option(
        envvar="QUIRE_CLUSTER_KEY_FILE",
        help="A file with the key that the nodes and routers of a cluster share. Nodes that "
        "share it exchange K and V (/v1/microserving).",
        rich_help_panel=_ACCESS,
    ),
]
DataHost = Annotated[
    str,
    typer.Option(
        envvar="QUIRE_DATA_HOST",
        help="The address of this machine at which other nodes' engines send K and V; only with a "
        "cluster key.",
        rich_help_panel=_ACCESS,
    ),
]
KVTransport = Annotated[
    KVTransportName,
    typer.Option(
        envvar="QUIRE_KV_TRANSPORT",
        help="Transport of K and V to other engines: tcp, or nixl (extra quire[nixl]) to "
        "engines that were also started with it.",
        rich_help_panel=_ACCESS,
    ),
]
Unauthenticated = Annotated[
    bool,
    typer.Option(
        "--no-auth",
        envvar="QUIRE_NO_AUTH",
        help="Allow addresses other than loopback without an API key.",
        rich_help_panel=_ACCESS,
    ),
]
MaxRequests = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="QUIRE_MAX_REQUESTS",
        help="Largest number of requests at once; further ones get status 503.",
        rich_help_panel=_HTTP,
    ),
]
MaxConnections = Annotated[
    int | None,
    typer.Option(
        min=64,
        show_default="from the limit of open files",
        envvar="QUIRE_MAX_CONNECTIONS",
        help="Largest number of connections; beyond it, connections without a request are closed.",
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
        help="Largest request body.",
        rich_help_panel=_HTTP,
    ),
]
MaxQueryBytes = Annotated[
    int,
    typer.Option(
        parser=size_value,
        show_default=format_size(_SERVER_DEFAULTS.max_query_bytes),
        metavar="SIZE",
        envvar="QUIRE_MAX_QUERY_BYTES",
        help="Largest body of a workflow's query, with its documents.",
        rich_help_panel=_HTTP,
    ),
]
HeadTimeout = Annotated[
    float,
    typer.Option(
        min=0.1,
        envvar="QUIRE_HEAD_TIMEOUT",
        help="Seconds within which a new connection must send the head of a request.",
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
        help="Seconds that one write to a slow client may take; then its request is cancelled.",
        rich_help_panel=_HTTP,
    ),
]
ResponseTtl = Annotated[
    float,
    typer.Option(
        min=1.0,
        envvar="QUIRE_RESPONSE_TTL",
        help="Seconds for which a stored response is kept after its last use.",
        rich_help_panel=_HTTP,
    ),
]
MaxStoredResponses = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="QUIRE_MAX_STORED_RESPONSES",
        help="Largest number of stored responses of a tenant; beyond it the least recently "
        "used ones are deleted.",
        rich_help_panel=_HTTP,
    ),
]
SessionTtl = Annotated[
    float,
    typer.Option(
        min=1.0,
        envvar="QUIRE_SESSION_TTL",
        help="Seconds after which an idle session ends; a later request with its name opens a new"
        " one.",
        rich_help_panel=_HTTP,
    ),
]
MaxSessionTtl = Annotated[
    float,
    typer.Option(
        min=1.0,
        envvar="QUIRE_MAX_SESSION_TTL",
        help="Longest idle time that a client may choose for a session (idle_ttl_s).",
        rich_help_panel=_HTTP,
    ),
]
DrainTimeout = Annotated[
    float,
    typer.Option(
        min=0.0,
        envvar="QUIRE_DRAIN_TIMEOUT",
        help="Seconds for running work to finish after the first SIGTERM or Ctrl-C.",
        rich_help_panel=_HTTP,
    ),
]
AllowUpload = Annotated[
    bool,
    typer.Option(
        "--allow-upload",
        envvar="QUIRE_ALLOW_UPLOAD",
        help="Run Python source of clients outside the sandbox, with the rights of this process.",
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
