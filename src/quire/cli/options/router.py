"""The options of ``quire router``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from quire.core.errors import ConfigError

_NODES = "Nodes"
_STRATEGY = "Strategy"
_ACCESS = "Access"

Nodes = Annotated[
    list[str],
    typer.Option(
        "--node",
        metavar="[NAME=]URL",
        envvar="QUIRE_ROUTER_NODES",
        help="A node behind the router. Repeatable.",
        rich_help_panel=_NODES,
    ),
]
ProbeInterval = Annotated[
    float,
    typer.Option(
        min=0.05,
        envvar="QUIRE_ROUTER_PROBE_INTERVAL",
        help="Seconds between two health probes of a node.",
        rich_help_panel=_NODES,
    ),
]
ProbeTimeout = Annotated[
    float,
    typer.Option(
        min=0.05,
        envvar="QUIRE_ROUTER_PROBE_TIMEOUT",
        help="Seconds within which a node must answer a probe; after three failed probes in a "
        "row it is dead.",
        rich_help_panel=_NODES,
    ),
]
NodeKeyFile = Annotated[
    Path | None,
    typer.Option(
        envvar="QUIRE_ROUTER_NODE_KEY_FILE",
        help="A file with the API key that the router sends to the nodes instead of the client's.",
        rich_help_panel=_NODES,
    ),
]
ClusterKeyFile = Annotated[
    Path | None,
    typer.Option(
        envvar="QUIRE_CLUSTER_KEY_FILE",
        help="A file with the key that routers and nodes share. --resume and the strategies "
        "that move KV cache need it.",
        rich_help_panel=_NODES,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        envvar="QUIRE_ROUTER_RESUME",
        help="When a node is lost, continue its completions, chats, messages, responses and "
        "restartable programs at another node. Needs --cluster-key-file.",
        rich_help_panel=_NODES,
    ),
]
StrategyOption = Annotated[
    str,
    typer.Option(
        envvar="QUIRE_ROUTER_STRATEGY",
        help="A shipped strategy's name, or FILE.py:NAME.",
        rich_help_panel=_STRATEGY,
    ),
]
StrategyOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy-option",
        metavar="NAME=VALUE",
        help="An option of the strategy's class. Repeatable.",
        rich_help_panel=_STRATEGY,
    ),
]
AdminKeyFile = Annotated[
    Path | None,
    typer.Option(
        envvar="QUIRE_ROUTER_ADMIN_KEY_FILE",
        help="A file with the key for /router. Without it, strategy and nodes cannot be "
        "changed over HTTP.",
        rich_help_panel=_ACCESS,
    ),
]


def strategy_options(texts: Sequence[str]) -> dict[str, Any]:
    """Return the options by name; a value that is JSON is read as such, any other is a text.

    Raises:
        ConfigError: one is not of the form NAME=VALUE, or a name occurs twice.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, is_named, value = text.partition("=")
        if not is_named or not name.isidentifier():
            raise ConfigError(f"--strategy-option {text!r}: write NAME=VALUE")
        if name in found:
            raise ConfigError(f"--strategy-option {name} is given twice")
        try:
            found[name] = msgspec.json.decode(value)
        except msgspec.MsgspecError:
            found[name] = value
    return found
