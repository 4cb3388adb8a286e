"""The strategies that are shipped, by name. Each is a few lines, and an example of how to write
one."""

from collections.abc import Callable
from typing import Any

from quire.cluster.strategies.cache_aware import CacheAware
from quire.cluster.strategies.data_parallel import DataParallel
from quire.cluster.strategies.least_used import least_used

SHIPPED: dict[str, Callable[..., Any]] = {
    "cache_aware": CacheAware,
    "data_parallel": DataParallel,
    "least_used": least_used,
}

__all__ = ["SHIPPED", "CacheAware", "DataParallel", "least_used"]
