"""``quire router``: one address for many nodes, built from options."""

from __future__ import annotations

from quire.cli import http_options as ho
from quire.cli import options as o
from quire.cli import router_options as ro
from quire.cli.configuration import check_exposure, tenants
from quire.cli.console import messages
from quire.cli.log_output import configure_logging
from quire.cluster.config import RouterConfig
from quire.cluster.key_files import read_key
from quire.cluster.nodes.addresses import read_addresses
from quire.cluster.nodes.watch import WatchTimes
from quire.cluster.routing.strategy import read_source
from quire.cluster.service import run as run_router
from quire.core.config import ServerConfig
from quire.core.interpreter import collect_seldom

_SERVER = ServerConfig(port=8080)
_TIMES = WatchTimes()


def router(
    node: ro.Nodes,
    strategy: ro.StrategyOption = "least_used",
    strategy_option: ro.StrategyOptions = None,
    host: ho.Host = _SERVER.host,
    port: ho.Port = _SERVER.port,
    allowed_host: ho.AllowedHosts = None,
    max_requests: ho.MaxRequests = _SERVER.max_requests,
    max_body_bytes: ho.MaxBodyBytes = _SERVER.max_body_bytes,
    max_query_bytes: ho.MaxQueryBytes = _SERVER.max_query_bytes,
    max_connections: ho.MaxConnections = _SERVER.max_connections,
    head_timeout: ho.HeadTimeout = _SERVER.head_timeout_s,
    body_timeout: ho.BodyTimeout = _SERVER.body_timeout_s,
    write_timeout: ho.WriteTimeout = _SERVER.write_timeout_s,
    drain_timeout: ho.DrainTimeout = _SERVER.drain_timeout_s,
    probe_interval: ro.ProbeInterval = _TIMES.interval_s,
    probe_timeout: ro.ProbeTimeout = _TIMES.timeout_s,
    resume: ro.Resume = False,
    api_key: ho.ServerApiKeys = None,
    api_keys_file: ho.ApiKeysFile = None,
    no_auth: ho.Unauthenticated = False,
    node_key_file: ro.NodeKeyFile = None,
    cluster_key_file: ro.ClusterKeyFile = None,
    admin_key_file: ro.AdminKeyFile = None,
    log_level: o.LogLevel = "info",
    log_requests: ho.LogRequests = True,
) -> None:
    """Serve the API of many nodes at one address, by a strategy that can be exchanged while it
    runs.

    Clients' keys are passed on for the nodes to check; with --api-key the router checks them, too.
    The first Ctrl-C (or SIGTERM) lets running requests end, a second one cuts them.

    Examples:

        quire router --node http://127.0.0.1:8001 --node http://127.0.0.1:8002

        quire router --node a=http://node-a:8000 --node b=http://node-b:8000 --strategy cache_aware

        quire router --node http://node-a:8000 --strategy mine.py:route --admin-key-file admin.key
    """
    configure_logging(log_level, log_requests=log_requests)
    known_tenants = tenants(api_key or (), api_keys_file)
    check_exposure(host, known_tenants, no_auth=no_auth)
    config = RouterConfig(
        nodes=read_addresses(node),
        strategy=read_source(strategy, ro.strategy_options(strategy_option or ())),
        tenants=known_tenants,
        node_key=read_key(node_key_file, "--node-key-file"),
        admin_key=read_key(admin_key_file, "--admin-key-file"),
        cluster_key=read_key(cluster_key_file, "--cluster-key-file"),
        times=WatchTimes(interval_s=probe_interval, timeout_s=probe_timeout),
        resumes=resume,
    )
    server = ServerConfig(
        host=host,
        port=port,
        allowed_hosts=tuple(allowed_host or ()),
        max_requests=max_requests,
        max_body_bytes=max_body_bytes,
        max_query_bytes=max_query_bytes,
        max_connections=max_connections,
        head_timeout_s=head_timeout,
        body_timeout_s=body_timeout,
        write_timeout_s=write_timeout,
        drain_timeout_s=drain_timeout,
    )

    def ready(url: str) -> None:
        where = f"{url} (OpenAI clients: base_url={url}/v1)"
        messages().print(f"Quire routes to {len(config.nodes)} nodes on {where}")

    collect_seldom()
    run_router(config, server, on_ready=ready)
