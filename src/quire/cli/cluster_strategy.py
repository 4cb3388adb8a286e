"""The trial of a cluster's strategy before ``quire up`` changes anything.

A router tries its strategy when it starts, and ends if that is refused. Then the router that it
replaces has ended already, and nobody serves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from quire.cli.options.router import strategy_options
from quire.cluster.deployment.spec import ClusterSpec, OwnHead
from quire.cluster.routing.strategy import load, read_source
from quire.core.errors import ConfigError, InvalidArgument

_DEFAULT = "least_used"


def check_strategy(cluster: ClusterSpec) -> None:
    """Try the strategy as the routers will, in the folder of the cluster's file. One in a file that
    this machine lacks, or whose routers have an environment of their own, is left to them.

    Raises:
        ConfigError: the routers would refuse it.
    """
    arguments = cluster.routers.arguments
    strategy = (*_values(arguments, "strategy"), _DEFAULT)[0]
    options = strategy_options(_values(arguments, "strategy-option"))
    file, is_file, _ = strategy.partition(".py")
    if is_file:
        is_here = isinstance(cluster.ray, OwnHead) or (cluster.folder / f"{file}.py").exists()
        if cluster.routers.environment or not is_here:
            return
    try:
        with contextlib.chdir(cluster.folder):
            asyncio.run(load(read_source(strategy, options)))
    except InvalidArgument as exc:
        raise ConfigError(f"routers.strategy: {exc.message}") from exc


def _values(arguments: Sequence[str], option: str) -> list[str]:
    before = f"--{option}="
    return [one.removeprefix(before) for one in arguments if one.startswith(before)]
