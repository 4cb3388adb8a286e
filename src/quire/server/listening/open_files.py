"""The limit of open files of this process: every client's connection is one.

Shells and service managers give a process 1024 by default, which is fewer than the requests that a
server accepts. At its limit a process cannot even refuse a connection: the client waits.
"""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)

_NUM_OTHERS = 512
"""Reserved for refused connections, processes of the node, other hosts, and files."""

MAX_CONNECTIONS = 16384
"""An upper bound, whatever the system's limit: each connection takes some kilobytes."""

_NUM_OWN = 256
"""Files that are not clients' connections; under a small limit, a quarter of it."""


def max_connections() -> int:
    """Return how many clients may be connected under this process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, soft - min(_NUM_OWN, soft // 4))


def allow_connections(num_requests: int) -> None:
    """Raise the limit as far as ``num_requests`` at a time require and the system allows."""
    wanted = num_requests + _NUM_OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    granted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    except (OSError, ValueError):  # some systems do not grant the hard limit
        granted = soft
    if granted < wanted:
        logger.warning(
            "this process may have %d files open, but %d requests at once need about %d: raise the "
            "limit (ulimit -n, LimitNOFILE) or lower --max-requests",
            granted,
            num_requests,
            wanted,
        )
