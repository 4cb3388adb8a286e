"""The options about HTTP that ``quire serve`` and ``quire router`` share, as groups
(``options.groups``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.cli.configuration import check_exposure, tenants
from quire.cli.options import http as ho
from quire.core.config import ServerConfig, TenantConfig

_DEFAULTS = ServerConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """Limits on requests and connections."""

    max_requests: ho.MaxRequests = _DEFAULTS.max_requests
    max_body_bytes: ho.MaxBodyBytes = _DEFAULTS.max_body_bytes
    max_query_bytes: ho.MaxQueryBytes = _DEFAULTS.max_query_bytes
    max_connections: ho.MaxConnections = _DEFAULTS.max_connections
    head_timeout: ho.HeadTimeout = _DEFAULTS.head_timeout_s
    body_timeout: ho.BodyTimeout = _DEFAULTS.body_timeout_s
    write_timeout: ho.WriteTimeout = _DEFAULTS.write_timeout_s

    def settings(self) -> Mapping[str, Any]:
        """Return the fields of ``ServerConfig`` that these options set."""
        return {
            "max_requests": self.max_requests,
            "max_body_bytes": self.max_body_bytes,
            "max_query_bytes": self.max_query_bytes,
            "max_connections": self.max_connections,
            "head_timeout_s": self.head_timeout,
            "body_timeout_s": self.body_timeout,
            "write_timeout_s": self.write_timeout,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """The clients that are served."""

    api_key: ho.ServerApiKeys = None
    api_keys_file: ho.ApiKeysFile = None
    no_auth: ho.Unauthenticated = False

    def tenants_at(self, host: str) -> tuple[TenantConfig, ...]:
        """Return the tenants of a server that listens on ``host``.

        Raises:
            ConfigError: the file cannot be read, two tenants share a key, or others can reach
                ``host`` and no key is needed.
        """
        known = tenants(self.api_key or (), self.api_keys_file)
        check_exposure(host, known, no_auth=self.no_auth)
        return known
