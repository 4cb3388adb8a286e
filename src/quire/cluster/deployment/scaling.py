"""Computes how many nodes the groups of a cluster are to have, from the requests that routers have
sent to them.

Pure: takes figures and times, returns counts, which ``autoscaler.py`` carries out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from quire.cluster.deployment.process import ProcessState
from quire.cluster.deployment.spec import ClusterSpec, Scaling


class GroupState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one group at the last look. ``num_requests``: requests without an answer;
    ``None`` if no router has answered."""

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
    """Computes the count of one group. It changes only if each look of a whole period asked for it,
    so that a short burst starts nothing and a short lull ends nothing."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._direction = 0
        self._since_s = 0.0
        self._nearest = 0

    def count(self, present: int, num_requests: int, now_s: float) -> int:
        """Return how many nodes the group is to have. ``present``: how many it has.
        ``num_requests``: the requests of all of them that have no answer yet. Of all counts that
        were asked for in the period, the nearest to ``present`` is returned."""
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
    """Return, for each group that is scaled, with how many nodes it goes on: its present number,
    within the bounds of the file; at first its ``count``."""
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
