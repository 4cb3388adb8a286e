"""The options of ``quire router``, as a group (``options.groups``)."""

from __future__ import annotations

from dataclasses import dataclass

from quire.cli.options import http as ho
from quire.cli.options import router as ro
from quire.cli.options import shared as o
from quire.cli.options.http_groups import AccessOptions, LimitOptions
from quire.cluster.config import RouterConfig
from quire.cluster.key_files import read_key
from quire.cluster.nodes.addresses import read_addresses
from quire.cluster.nodes.watch import WatchTimes
from quire.cluster.routing.strategy import read_source
from quire.core.config import ServerConfig, TenantConfig

_SERVER = ServerConfig(port=8080)
_TIMES = WatchTimes()


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLogOptions:
    """The log output of the router."""

    log_level: o.LogLevel = "info"
    log_requests: ho.LogRequests = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterOptions:
    """All options, in the order of ``quire router --help``."""

    node: ro.Nodes
    strategy: ro.StrategyOption = "least_used"
    strategy_option: ro.StrategyOptions = None
    host: ho.Host = _SERVER.host
    port: ho.Port = _SERVER.port
    allowed_host: ho.AllowedHosts = None
    limits: LimitOptions
    drain_timeout: ho.DrainTimeout = _SERVER.drain_timeout_s
    probe_interval: ro.ProbeInterval = _TIMES.interval_s
    probe_timeout: ro.ProbeTimeout = _TIMES.timeout_s
    resume: ro.Resume = False
    access: AccessOptions
    node_key_file: ro.NodeKeyFile = None
    cluster_key_file: ro.ClusterKeyFile = None
    admin_key_file: ro.AdminKeyFile = None
    log: RouterLogOptions

    def configs(self) -> tuple[RouterConfig, ServerConfig]:
        """Return the configurations of the router and its listener.

        Raises:
            ConfigError, InvalidArgument: the options describe no router.
        """
        return self._router(self.access.tenants_at(self.host)), self._server()

    def _router(self, tenants: tuple[TenantConfig, ...]) -> RouterConfig:
        options = ro.strategy_options(self.strategy_option or ())
        return RouterConfig(
            nodes=read_addresses(self.node),
            strategy=read_source(self.strategy, options),
            tenants=tenants,
            node_key=read_key(self.node_key_file, "--node-key-file"),
            admin_key=read_key(self.admin_key_file, "--admin-key-file"),
            cluster_key=read_key(self.cluster_key_file, "--cluster-key-file"),
            times=WatchTimes(interval_s=self.probe_interval, timeout_s=self.probe_timeout),
            resumes=self.resume,
        )

    def _server(self) -> ServerConfig:
        return ServerConfig(
            host=self.host,
            port=self.port,
            allowed_hosts=tuple(self.allowed_host or ()),
            drain_timeout_s=self.drain_timeout,
            **self.limits.settings(),
        )
