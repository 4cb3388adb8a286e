"""The options of ``quire serve`` and ``quire router`` that ``cluster.yaml`` may set, read from the
commands themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.main import get_command

from quire.cli.router import router
from quire.cli.serve import serve
from quire.cluster.deployment.options import CommandOptions, OptionKind
from quire.cluster.deployment.reading import Commands
from quire.core.errors import ConfigError

_ADDRESS = "the cluster decides it: write listen, and the group's port"
_KEYS = "write the file under keys"
_DECIDED = {
    "host": _ADDRESS,
    "port": _ADDRESS,
    "cluster-key-file": f"{_KEYS} as cluster",
    "api-key": "arguments are seen by every user of a machine: write api-keys-file",
}
_OF_SERVE = {**_DECIDED, "data-host": _ADDRESS}
_OF_ROUTER = {
    **_DECIDED,
    "admin-key-file": f"{_KEYS} as admin",
    "node": "routers are told the cluster's nodes",
    "strategy": "write routers.strategy",
    "strategy-option": "write routers.strategy_options",
}
_ANY_NODE = "--node=http://127.0.0.1:1"


def cluster_commands() -> Commands:
    """Return the options of both commands."""
    return Commands(
        _options("serve", serve, _OF_SERVE, ()),
        _options("router", router, _OF_ROUTER, (_ANY_NODE,)),
    )


def _options(
    name: str, function: Callable[..., None], decided: dict[str, str], always: Sequence[str]
) -> CommandOptions:
    app = typer.Typer(add_completion=False)
    app.command(name)(function)
    command: Any = get_command(app)
    kinds: dict[str, OptionKind] = {}
    negative: dict[str, str] = {}
    for option in command.params:
        if option.param_type_name != "option" or option.name == "help":
            continue
        long = next(one for one in option.opts if one.startswith("--")).removeprefix("--")
        kinds[long] = "flag" if option.is_flag else "values" if option.multiple else "value"
        if option.secondary_opts:
            negative[long] = option.secondary_opts[0].removeprefix("--")

    def check(arguments: Sequence[str]) -> None:
        try:
            command.make_context(name, [*always, *arguments]).close()
        except typer.BadParameter as exc:
            raise ConfigError(f"'quire {name}' refuses it: {exc.format_message()}") from exc

    return CommandOptions(name, kinds, negative, check, decided)
