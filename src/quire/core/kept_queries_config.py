"""The bounds on a node's kept queries of workflows, as a frozen value. Built by the CLI."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KeptQueriesConfig:
    """What a node with a data directory keeps of workflows' queries that were given an id.

    ``ttl_s``: how long a query is kept after its last action. ``max_bytes`` and ``max_queries``:
    the bounds of one tenant; results of finished queries give way to others. ``max_query_bytes``:
    the bound of one query.
    """

    ttl_s: float = 86_400.0
    max_bytes: int = 256 << 20
    max_query_bytes: int = 64 << 20
    max_queries: int = 1024

    def __post_init__(self) -> None:
        least = min(self.max_bytes, self.max_query_bytes, self.max_queries)
        if not self.ttl_s > 0 or least < 1:
            raise ConfigError(
                f"kept queries: ttl_s is {self.ttl_s:g}, max_bytes {self.max_bytes}, "
                f"max_query_bytes {self.max_query_bytes} and max_queries {self.max_queries}: "
                "choose more than 0"
            )
