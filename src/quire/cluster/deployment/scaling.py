"""How many nodes the groups of a cluster are to have, by what routers have sent to them.

Pure: figures and times go in, counts come out. What carries a count out is ``autoscaler.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from quire.cluster.deployment.process import ProcessState
from quire.cluster.deployment.spec import ClusterSpec, Scaling


class GroupState(msgspec.Struct, frozen=True, kw_only=True):
    """Of one group at the last look. ``num_requests``: without an answer; ``None``: no router
    told."""

    group: str
    count: int
    least: int
    most: int
    num_requests: int | None = None


class ScalingState(msgspec.Struct, frozen=True, kw_only=True):
    """``last``: the last change, or what prevented one, in words."""

    groups: tuple[GroupState, ...] = ()
    last: str = ""
    last_unix_s: float | None = None


class GroupScaler:
    """One group. A count changes only when each look of a whole period asked for it, so that a
    burst that is over starts nothing and a lull ends nothing."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._direction = 0
        self._since_s = 0.0
        self._nearest = 0

    def count(self, present: int, num_requests: int, now_s: float) -> int:
        """How many nodes there are to be. ``present``: how many there are. ``num_requests``:
        those without an answer, of all of them. Of all counts that were asked for in the period,
        the nearest to ``present``."""
        scaling = self._scaling
        asked = scaling.bounded(math.ceil(num_requests / scaling.requests))
        direction = (asked > present) - (asked < present)
        if direction == 0:
            self._direction = 0
            return present
        if direction != self._direction:
            self._direction, self._since_s, self._nearest = direction, now_s, asked
        nearer = min if direction > 0 else max
        self._nearest = nearer(self._nearest, asked)
        period_s = scaling.up_after_s if direction > 0 else scaling.down_after_s
        if now_s - self._since_s < period_s:
            return present
        self._direction = 0
        return self._nearest


def present_counts(cluster: ClusterSpec, states: Mapping[str, ProcessState]) -> dict[str, int]:
    """Of each group that is scaled: how many nodes it goes on with. It begins with ``count``; one
    of which the file's bounds have changed is brought into them."""
    found = {}
    for group in cluster.nodes:
        if group.scaling is not None:
            num = sum(
                state.group == group.name
                and state.kind == "node"
                and state.phase not in ("stopping", "stopped")
                for state in states.values()
            )
            found[group.name] = group.scaling.bounded(num or group.count)
    return found
