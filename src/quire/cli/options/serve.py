"""The options of ``quire serve``, as groups (``options.groups``) that make the configurations of
node and server.

Groups about engines, scheduling, the sandbox and the limits of HTTP have modules of their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.cli.options import http as ho
from quire.cli.options import programs as po
from quire.cli.options import shared as o
from quire.cli.options.engines import EngineOptions, ExchangeOptions, ModelOptions
from quire.cli.options.http_groups import AccessOptions, LimitOptions
from quire.cli.options.mcp_servers import read_mcp_servers
from quire.cli.options.sandbox import SandboxOptions
from quire.cli.options.scheduler import SchedulingOptions
from quire.cli.profile.workflows import read_profiles
from quire.core.config import NodeConfig, ServerConfig, TenantConfig
from quire.core.kept_queries_config import KeptQueriesConfig
from quire.programs.workflow import App
from quire.programs.workflow.applications import APPLICATIONS, Applications, find_applications
from quire.programs.workflow.template.keys import use_keys
from quire.programs.workflow.template.profiles import use_profiles

_SERVER = ServerConfig()
_KEPT = KeptQueriesConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """What programs find on the node beside models, and what is kept of them."""

    record: o.Record = None
    data_dir: po.DataDir = None
    kept_query_ttl_s: po.KeptQueryTtl = _KEPT.ttl_s
    kept_query_bytes: po.KeptQueryBytes = _KEPT.max_bytes
    vector_store: po.VectorStore = "exact"
    search: po.Search = None
    mcp_servers: po.McpServers = None

    def settings(self, tenants: Sequence[TenantConfig]) -> Mapping[str, Any]:
        """Return the fields of ``NodeConfig`` that these options set.

        Raises:
            ConfigError: the file of MCP servers cannot be read.
        """
        return {
            "record_path": self.record,
            "data_dir": self.data_dir,
            "kept_queries": KeptQueriesConfig(self.kept_query_ttl_s, self.kept_query_bytes),
            "vector_store": self.vector_store,
            "search": self.search,
            "mcp_servers": read_mcp_servers(self.mcp_servers, [one.id for one in tenants]),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowOptions:
    """The workflows that are served."""

    workflow: po.Workflows = None
    profile: po.Profiles = None

    def named(self) -> Mapping[str, App]:
        """Return the workflows that --workflow names; files are run for it.

        Raises:
            ConfigError, InvalidArgument: a workflow does not exist.
        """
        return find_applications(self.workflow or ())

    def applications(self, named: Mapping[str, App], node: NodeConfig) -> Applications | None:
        """Return the workflows that ``node`` serves: ``named``, or else those that are shipped;
        None for these unchanged.

        Raises:
            ConfigError, InvalidArgument: a profile does not fit.
        """
        if not named and not self.profile:
            return None
        profiles = read_profiles(self.profile or (), node.engines, node.encoders)
        found = named or find_applications(list(APPLICATIONS))
        for app in found.values():
            use_profiles(use_keys(app, os.environ), profiles)
        return Applications.of(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """Where the node listens, and for which clients."""

    host: ho.Host = _SERVER.host
    port: ho.Port = _SERVER.port
    allowed_host: ho.AllowedHosts = None
    cors_origin: ho.CorsOrigins = None

    def settings(self) -> Mapping[str, Any]:
        """Return the fields of ``ServerConfig`` that these options set."""
        return {
            "host": self.host,
            "port": self.port,
            "allowed_hosts": tuple(self.allowed_host or ()),
            "cors_origins": tuple(self.cors_origin or ()),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepingOptions:
    """How long the node keeps what clients leave, and waits for them at its end."""

    session_ttl: ho.SessionTtl = _SERVER.session_ttl_s
    max_session_ttl: ho.MaxSessionTtl = _SERVER.max_session_ttl_s
    response_ttl: ho.ResponseTtl = _SERVER.response_ttl_s
    max_stored_responses: ho.MaxStoredResponses = _SERVER.max_stored_responses
    drain_timeout: ho.DrainTimeout = _SERVER.drain_timeout_s

    def settings(self) -> Mapping[str, Any]:
        """Return the fields of ``ServerConfig`` that these options set."""
        return {
            "session_ttl_s": self.session_ttl,
            "max_session_ttl_s": self.max_session_ttl,
            "response_ttl_s": self.response_ttl,
            "max_stored_responses": self.max_stored_responses,
            "drain_timeout_s": self.drain_timeout,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What the node logs, and where it sends traces."""

    otlp_endpoint: o.OtlpEndpoint = None
    log_level: o.LogLevel = "info"
    log_requests: ho.LogRequests = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """All options, in the order of ``quire serve --help``."""

    models: ModelOptions
    engines: EngineOptions
    scheduling: SchedulingOptions
    programs: ProgramOptions
    workflows: WorkflowOptions
    listen: ListenOptions
    limits: LimitOptions
    keeping: KeepingOptions
    access: AccessOptions
    exchange: ExchangeOptions
    sandbox: SandboxOptions
    log: LogOptions

    def configs(self, named: Mapping[str, App]) -> tuple[NodeConfig, ServerConfig]:
        """Return the configurations of the node and its server. ``named``: the workflows that
        --workflow names; without --encoder they have the encoder of an installed package.

        Raises:
            ConfigError: the options describe no node.
        """
        tenants = self.access.tenants_at(self.listen.host)
        cluster_key = self.exchange.cluster_key()
        return self._node(tenants, named), self._server(cluster_key)

    def _node(self, tenants: tuple[TenantConfig, ...], named: Mapping[str, App]) -> NodeConfig:
        replicas = self.scheduling.sharing.replicas
        receives_at = self.exchange.receives_at(replicas)
        shared = self.engines.shared(receives_at, self.exchange.kv_transport)
        return NodeConfig(
            engines=self.models.engines(shared, replicas),
            encoders=self.models.encoders(named),
            encoder_cache_bytes=self.models.encoder_cache_bytes,
            shared_results_bytes=self.models.shared_results_bytes,
            load_stall_timeout_s=self.models.load_stall_timeout,
            scheduler=self.scheduling.config(),
            tenants=tenants,
            sandbox=self.sandbox.config(),
            otlp_endpoint=self.log.otlp_endpoint,
            **self.programs.settings(tenants),
        )

    def _server(self, cluster_key: str | None) -> ServerConfig:
        return ServerConfig(
            data_dir=self.programs.data_dir,
            sandbox_upload=self.sandbox.sandbox,
            allow_native_upload=self.sandbox.allow_upload,
            cluster_key=cluster_key,
            **self.listen.settings(),
            **self.limits.settings(),
            **self.keeping.settings(),
        )
