"""The load of a cluster's nodes, as its routers report it.

Asks over HTTP; the figures of a router that does not answer are missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from quire.cluster.deployment.process import ProcessState

_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """The load of one node: ``num_running`` requests that have no answer yet, ``num_waiting`` of
    them in its queue."""

    state: str
    num_running: int
    num_waiting: int


def node_loads(states: Mapping[str, ProcessState], admin_key: str | None) -> dict[str, NodeLoad]:
    """Return the nodes' loads by name. Running requests are summed over the routers, each of which
    counts its own; of the queues the longest is taken."""
    headers = {} if admin_key is None else {"authorization": f"Bearer {admin_key}"}
    found: dict[str, NodeLoad] = {}
    for state in states.values():
        if state.kind != "router" or state.phase not in ("ready", "unready"):
            continue
        for engine in _engines(state.url, headers):
            former = found.get(engine["name"], NodeLoad("", 0, 0))
            found[engine["name"]] = NodeLoad(
                engine["state"],
                former.num_running + int(engine["num_outstanding"] or 0),
                max(former.num_waiting, int(engine["queue"] or 0)),
            )
    return found


def _engines(url: str, headers: Mapping[str, str]) -> list[dict[str, Any]]:
    try:
        answer = httpx.get(
            f"{url}/router/engines", headers=headers, timeout=_TIMEOUT_S, trust_env=False
        )
        answer.raise_for_status()
        return list(answer.json()["engines"])
    except (httpx.HTTPError, ValueError, KeyError):
        return []
