"""The configuration of a router, beside that of its listener (``core.config.ServerConfig``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.cluster.nodes.addresses import NodeAddress
from quire.cluster.nodes.liveness import Hysteresis
from quire.cluster.nodes.watch import WatchTimes
from quire.cluster.routing.strategy import StrategySource
from quire.core.config import TenantConfig
from quire.core.errors import ConfigError
from quire.core.ids import TenantId


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """``tenants``: the tenants whose keys clients need; without any key all requests pass, and the
    nodes check them. ``node_key``: sent to nodes in place of the client's key. ``admin_key``:
    needed for ``/router``; without it the strategy cannot be exchanged over HTTP. ``cluster_key``:
    shared with the nodes, for the three calls and the engines' figures. ``max_block_s``: a strategy
    that blocks the event loop for longer is reported. ``resumes``: a streamed completion whose node
    is lost goes on at another node; this needs the cluster's key."""

    nodes: tuple[NodeAddress, ...]
    strategy: StrategySource = field(default_factory=lambda: StrategySource("least_used"))
    tenants: tuple[TenantConfig, ...] = (TenantConfig(TenantId("default")),)
    node_key: str | None = None
    admin_key: str | None = None
    cluster_key: str | None = None
    times: WatchTimes = field(default_factory=WatchTimes)
    hysteresis: Hysteresis = field(default_factory=Hysteresis)
    max_block_s: float = 0.5
    resumes: bool = False

    def __post_init__(self) -> None:
        if self.resumes and self.cluster_key is None:
            raise ConfigError(
                "a completion goes on at another node by a call that needs the key which routers "
                "and nodes share: add --cluster-key-file, or leave --resume out"
            )
