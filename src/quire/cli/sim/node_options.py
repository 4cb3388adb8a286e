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
        help="Simulate requests to a router over this number of nodes, each with one engine, "
        "instead of programs on one node."
    ),
]
Strategies = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[:OPTION=VALUE,...]",
        help="With --nodes: a strategy of 'quire router', or FILE.py:NAME. Repeat it to "
        "compare several [default: least_used].",
    ),
]
Requests = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=VALUE,...",
        help="With --nodes: the requests. prompt, answer: mean lengths in tokens; spread: "
        "standard deviation of both (of their logarithms with shape=lognormal). prefixes: "
        "number of shared beginnings, each of prefix tokens; the i-th is used in "
        "proportion to 1/i**zipf [default: "
        "prompt=200,answer=260,shape=lognormal,spread=1].",
    ),
]
Links = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=VALUE,...",
        help="With --nodes: the network. bytes_per_s, layer_s (of each layer), way_s "
        "(latency): transfer of K and V between nodes; call_s: round trip from the router "
        "to a node; num_layers, token_bytes: size of K and V [default: "
        "bytes_per_s=1e10,layer_s=0,way_s=0,call_s=0.001; num_layers and token_bytes from "
        "--profile, else 32 and 4096].",
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
