"""A cluster as the commands ``quire up``, ``quire down`` and ``quire status`` see it.

Owns the order of the parts: keys, Ray, the rollout, the removal. Only one ``up`` or ``down`` of a
cluster runs on a machine at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from quire.cluster.deployment.expansion import (
    Expansion,
    KeyFileContents,
    make_keys,
    make_state_dir,
    read_keys,
)
from quire.cluster.deployment.head import RayAccess, RayHead
from quire.cluster.deployment.plan import Wave
from quire.cluster.deployment.process import ADMIN_KEY_FILE, ProcessState
from quire.cluster.deployment.ray_cluster import RayCluster, require_ray
from quire.cluster.deployment.report import ClusterReport, report
from quire.cluster.deployment.rollout import Rollout, RolloutListener, planned_waves
from quire.cluster.deployment.scaling import ScalingState, present_counts
from quire.cluster.deployment.spec import NUM_HEAD_PORTS, ClusterSpec, OtherRay, OwnHead
from quire.cluster.deployment.sweeping import (
    end_unkept,
    ended_states,
    remove_state,
    unkept_states,
)
from quire.core.errors import AlreadyExists, EngineLost

_LOCK = "command.lock"
_UNSCALED = "groups with autoscale keep their number of nodes until 'quire up' has succeeded"
_NO_SCALER = "but no autoscaler answers: if that lasts, run 'quire up'"


class DeploymentWatcher(RolloutListener, Protocol):
    """Receives each step: those of the rollout, and those that concern Ray."""

    def ray(self, words: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was found of a cluster. ``ray``: the state of its Ray, in words."""

    ray: str
    processes: Mapping[str, ProcessState]
    scaling: ScalingState | None = None


class Deployment:
    """The cluster ``cluster``. ``state_dir``: the folder of its files. ``environment``: the
    environment of its own Ray, and with it of each process."""

    def __init__(
        self, cluster: ClusterSpec, state_dir: Path, environment: Mapping[str, str]
    ) -> None:
        self._cluster = cluster
        self._state_dir = state_dir
        self._head = (
            RayHead(state_dir, cluster.ray, environment)
            if isinstance(cluster.ray, OwnHead)
            else None
        )

    def plan(self) -> list[Wave]:
        """Return what ``up`` would do. Changes nothing; starts no Ray."""
        keys = read_keys(self._cluster, self._state_dir)
        states = self._states().processes
        return planned_waves(self._expansion(keys, states), states)

    @property
    def admin_key_file(self) -> Path:
        """The file of the key that may change a router's strategy and nodes."""
        return self._cluster.keys.admin or self._state_dir / ADMIN_KEY_FILE

    def up(self, watcher: DeploymentWatcher) -> ClusterReport:
        """Make the cluster what its file says. Idempotent.

        Raises:
            QuireError: something does not start; what was not yet changed stays as it is.
        """
        require_ray()
        make_state_dir(self._state_dir)
        with self._alone():
            keys = make_keys(self._cluster, self._state_dir)
            self._start_ray(watcher)
            with self._connected() as keepers:
                keepers.stop_scaling()
                expansion = self._expansion(keys, keepers.states())
                timeout_s = self._cluster.ready_timeout_s
                try:
                    Rollout(keepers, watcher, ready_timeout_s=timeout_s).up(expansion)
                except BaseException:
                    if expansion.counts:
                        watcher.ray(_UNSCALED)
                    raise
                if expansion.counts:
                    keepers.start_scaling(expansion)
                return self._report(_Seen("runs", keepers.states(), keepers.scaling()))

    def _start_ray(self, watcher: DeploymentWatcher) -> None:
        """Start Ray if it is the cluster's own and does not run."""
        if isinstance(self._cluster.ray, OtherRay):
            watcher.ray(f"connect to Ray at {self._cluster.ray.address}")
        elif self._head is not None and not self._head.is_running():
            first = self._cluster.ray.port
            watcher.ray(
                f"start Ray on the ports {first} to {first + NUM_HEAD_PORTS - 1} of loopback, "
                "which takes half a minute"
            )
            self._head.start()

    def down(self, watcher: DeploymentWatcher) -> list[str]:
        """End everything of the cluster and remove its files. Return the names of processes that no
        keeper had."""
        if not self._state_dir.exists():
            return []
        with self._alone():
            unkept: list[str] = []
            if self._head is None or self._head.is_running():
                try:
                    unkept = self._end_kept(watcher)
                except EngineLost:
                    if self._head is None:  # keepers elsewhere would start them again
                        raise
            if self._head is not None:
                if self._head.is_running():
                    watcher.ray("stop Ray")
                self._head.stop()
            unkept += end_unkept(self._state_dir)
            remove_state(self._state_dir)
        return unkept

    def status(self) -> ClusterReport:
        """Report on the cluster, also on what has ended here and nothing starts again."""
        seen = self._states()
        ended = ended_states(self._state_dir, seen.processes.keys())
        return self._report(replace(seen, processes={**seen.processes, **ended}))

    def _end_kept(self, watcher: DeploymentWatcher) -> list[str]:
        with self._connected() as keepers:
            keepers.stop_scaling()
            timeout_s = self._cluster.ready_timeout_s
            Rollout(keepers, watcher, ready_timeout_s=timeout_s).down()
            return keepers.sweep()

    def _states(self) -> _Seen:
        """Return the states of the processes; without Ray, those of this machine."""
        if self._head is not None and not self._head.is_running():
            going_on = unkept_states(self._state_dir, ())
            told = "is not running: 'quire up' starts it"
            return _Seen(f"{told}, processes go on meanwhile" if going_on else told, going_on)
        try:
            with self._connected() as keepers:
                states, scaling = keepers.states(), keepers.scaling()
        except EngineLost as exc:
            return _Seen(exc.message, unkept_states(self._state_dir, ()))
        is_silent = scaling is None and any(group.scaling for group in self._cluster.nodes)
        return _Seen(f"runs, {_NO_SCALER}" if is_silent else "runs", states, scaling)

    def _report(self, seen: _Seen) -> ClusterReport:
        key = self.admin_key_file
        admin_key = key.read_text("utf-8").strip() if key.exists() else None
        return report(self._cluster.name, seen.ray, seen.processes, admin_key, scaling=seen.scaling)

    def _expansion(self, keys: KeyFileContents, states: Mapping[str, ProcessState]) -> Expansion:
        counts = present_counts(self._cluster, states)
        return Expansion(self._cluster, self._state_dir, keys, counts)

    def _connected(self) -> RayCluster:
        ray = self._cluster.ray
        if isinstance(ray, OtherRay):
            access = RayAccess(ray.address, ray.token_file, is_loopback=False)
        else:
            assert self._head is not None
            access = self._head.access
        return RayCluster(self._cluster.name, self._state_dir, access)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with (self._state_dir / _LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise AlreadyExists(
                    f"another 'quire up' or 'quire down' of {self._cluster.name} runs: wait for it"
                ) from exc
            yield
