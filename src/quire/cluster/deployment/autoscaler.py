"""Adjusts the number of a cluster's nodes to its load, without an operator.

Owns the loop and the state that it reports. ``scaling.py`` computes the counts; the rollout of
``quire up`` carries them out. Must not import ray.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

import msgspec

from quire.cluster.deployment.expansion import Expansion
from quire.cluster.deployment.loads import NodeLoad
from quire.cluster.deployment.plan import Wave
from quire.cluster.deployment.process import ProcessState
from quire.cluster.deployment.rollout import Keepers, Rollout
from quire.cluster.deployment.scaling import (
    GroupScaler,
    GroupState,
    ScalingState,
    present_counts,
)
from quire.core.errors import QuireError

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
_AFTER_FAILURE_S = 30.0

LoadsOf = Callable[[Mapping[str, ProcessState]], Mapping[str, NodeLoad]]
"""Returns the nodes' loads by name; empty if no router answers."""


@dataclass(slots=True)
class _Quiet:
    """A listener that logs the progress of a rollout; the autoscaler keeps its failures."""

    def planned(self, wave: Wave) -> None:
        for step in wave:
            logger.info("%s %s: %s", step.action, step.name, step.reason)

    def changed(self, state: ProcessState) -> None:
        logger.info("%s is %s", state.name, state.phase)


class Autoscaler:
    """The loop that scales one cluster. ``state`` may be read from any thread; everything else
    belongs to the thread of ``run``."""

    def __init__(
        self,
        expansion: Expansion,
        keepers: Keepers,
        loads: LoadsOf,
        *,
        now_s: Callable[[], float] = time.monotonic,
        unix_s: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._expansion = expansion
        self._keepers = keepers
        self._loads = loads
        self._now_s = now_s
        self._unix_s = unix_s
        self._sleep = sleep
        self._scalers = {
            group.name: GroupScaler(group.scaling)
            for group in expansion.cluster.nodes
            if group.scaling is not None
        }
        self._state = ScalingState()

    @property
    def state(self) -> ScalingState:
        return self._state

    def run(self) -> NoReturn:
        """Look again and again, for ever."""
        while True:
            try:
                self.look()
            except QuireError as exc:
                logger.warning("the cluster could not be scaled: %s", exc.message)
                self._tell(exc.message)
                self._sleep(_AFTER_FAILURE_S)
            except Exception as exc:  # Ray's own: the next look finds the cluster as it then is
                logger.exception("the cluster could not be scaled")
                self._tell(f"{type(exc).__name__}: {exc}")
                self._sleep(_AFTER_FAILURE_S)
            else:
                self._sleep(INTERVAL_S)

    def look(self) -> None:
        """Compute the counts once, and change those that differ.

        Raises:
            QuireError: there is no room for a node, or one is not ready in time; what was not
                yet changed stays as it is.
        """
        states = self._keepers.states()
        loads = self._loads(states)
        present = present_counts(self._expansion.cluster, states)
        wanted = dict(present)
        groups = []
        for name, count in present.items():
            asked = _num_requests(name, states, loads)
            if asked is not None:
                wanted[name] = self._scalers[name].count(count, asked, self._now_s())
            groups.append(self._group_state(name, count, asked))
        self._state = msgspec.structs.replace(self._state, groups=tuple(groups))
        if wanted != present:
            self._change(present, wanted)

    def _change(self, present: Mapping[str, int], wanted: Mapping[str, int]) -> None:
        timeout_s = self._expansion.cluster.ready_timeout_s
        rollout = Rollout(
            self._keepers,
            _Quiet(),
            ready_timeout_s=timeout_s,
            now_s=self._now_s,
            sleep=self._sleep,
        )
        told = "; ".join(
            f"{name} from {present[name]} to {count}"
            for name, count in wanted.items()
            if count != present[name]
        )
        self._tell(f"changing {told}")
        rollout.up(replace(self._expansion, counts=wanted))
        self._tell(told)

    def _group_state(self, name: str, count: int, asked: int | None) -> GroupState:
        scaling = next(one.scaling for one in self._expansion.cluster.nodes if one.name == name)
        assert scaling is not None
        return GroupState(
            group=name, count=count, least=scaling.least, most=scaling.most, num_requests=asked
        )

    def _tell(self, what: str) -> None:
        self._state = msgspec.structs.replace(self._state, last=what, last_unix_s=self._unix_s())


def _num_requests(
    group: str, states: Mapping[str, ProcessState], loads: Mapping[str, NodeLoad]
) -> int | None:
    found = [
        loads[name].num_running
        for name, state in states.items()
        if state.group == group and name in loads
    ]
    return sum(found) if found else None
