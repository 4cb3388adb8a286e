"""The options of ``quire sim --nodes``, and the options that exclude them.

Separate from ``nodes``, which imports routers and servers: that takes a second, and most
simulations have no nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from quire.control.policies import POLICIES
from quire.core.errors import ConfigError

Nodes = Annotated[
    int | None,
    typer.Option(
        help="Instead of programs on one node: requests to a router over so many nodes, each with "
        "one engine."
    ),
]
Strategies = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[:OPTION=VALUE,...]",
        help="With --nodes, repeatable, to compare: a strategy of 'quire router', or "
        "FILE.py:NAME [default: least_used].",
    ),
]
Requests = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=VALUE,...",
        help="With --nodes, the requests: prompt and answer are their mean lengths, spread the "
        "standard deviation of both (of their logarithms, with shape=lognormal); prefixes texts of "
        "prefix tokens begin them, the i-th in proportion to 1/i**zipf [default: "
        "prompt=200,answer=260,shape=lognormal,spread=1].",
    ),
]
Links = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=VALUE,...",
        help="With --nodes, the ways: bytes_per_s, layer_s and way_s of K and V between nodes, "
        "call_s from the router to a node and back; K and V have num_layers and token_bytes "
        "[default: bytes_per_s=1e10,layer_s=0,way_s=0,call_s=0.001, and of K and V what --profile "
        "says, or num_layers=32,token_bytes=4096].",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Requests to a router over nodes, instead of programs on one node."""

    nodes: Nodes = None
    strategy: Strategies = None
    requests: Requests = None
    link: Links = None

    def refuse_beside(
        self, asked: Mapping[str, object], engines: int, policies: Sequence[str]
    ) -> None:
        """Refuse options that exclude ``--nodes``. ``asked``: the options of programs with the
        given values; ``engines``: those of a node.

        Raises:
            ConfigError: one of them excludes ``--nodes``.
        """
        given = [f"--{name} {value}" for name, value in asked.items() if value is not None]
        if given:
            raise ConfigError(f"{given[0]} beside --nodes: say with --requests what comes")
        if engines != 1:
            raise ConfigError(f"--engines {engines} beside --nodes: a node has one")
        if len(policies) > 1 or policies[0] not in POLICIES:
            raise ConfigError(
                f"--policy {' --policy '.join(policies)} beside --nodes: nodes have one policy, of "
                f"{sorted(POLICIES)}"
            )

    def refuse_alone(self) -> None:
        """Refuse the options of nodes without ``--nodes``.

        Raises:
            ConfigError: an option of nodes is given, and ``--nodes`` is not.
        """
        asked = {"strategy": self.strategy, "requests": self.requests, "link": self.link}
        given = [name for name, value in asked.items() if value is not None]
        if given:
            raise ConfigError(f"--{given[0]} without --nodes: say how many nodes there are")
