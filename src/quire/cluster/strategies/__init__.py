"""The shipped strategies, by name. Each has a few lines, and is an example of how to write one."""

from collections.abc import Callable
from typing import Any

from quire.cluster.strategies.autellix import Autellix
from quire.cluster.strategies.balanced import Balanced
from quire.cluster.strategies.cache_aware import CacheAware
from quire.cluster.strategies.data_parallel import DataParallel
from quire.cluster.strategies.disaggregated import Disaggregated
from quire.cluster.strategies.handing_over import handed_over
from quire.cluster.strategies.least_used import least_used
from quire.cluster.strategies.migrating import Migrating
from quire.cluster.strategies.quire import Quire

SHIPPED: dict[str, Callable[..., Any]] = {
    "autellix": Autellix,
    "balanced": Balanced,
    "cache_aware": CacheAware,
    "data_parallel": DataParallel,
    "disaggregated": Disaggregated,
    "least_used": least_used,
    "migrating": Migrating,
    "quire": Quire,
}

__all__ = [
    "SHIPPED",
    "Autellix",
    "Balanced",
    "CacheAware",
    "DataParallel",
    "Disaggregated",
    "Migrating",
    "Quire",
    "handed_over",
    "least_used",
]
