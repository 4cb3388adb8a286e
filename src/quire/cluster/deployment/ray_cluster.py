"""Keepers as detached actors of Ray. The only module that imports ray, and late: it is an extra.

Owns what Ray is used for: to choose the machine of a process (placement groups), and to start a
keeper again, there or elsewhere. Messages between processes do not pass through it. The actors of a
cluster are in a namespace of the cluster's name.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import msgspec

from quire.cluster.deployment.autoscaler import Autoscaler
from quire.cluster.deployment.expansion import Expansion
from quire.cluster.deployment.head import RayAccess
from quire.cluster.deployment.hosting import HostedKeeper
from quire.cluster.deployment.loads import node_loads
from quire.cluster.deployment.placing import (
    Places,
    missing_places,
    parse_places,
    place_of,
)
from quire.cluster.deployment.process import ProcessSpec, ProcessState
from quire.cluster.deployment.scaling import ScalingState
from quire.cluster.deployment.sweeping import end_unkept, sweep_machine, unkept_states
from quire.core.errors import ConfigError, EngineLost, PoolExhausted

_ANSWER_S = 5.0
_CONNECT_S = 10.0
_PLACE_S = 20.0
_GONE_S = 30.0
_SWEEP_S = 600.0
_INTERVAL_S = 0.1
_ROUTERS = "router"
_AUTOSCALER = "autoscaler"


def require_ray() -> None:
    """Raise ``ConfigError`` if the extra is not installed. Does not import Ray."""
    if find_spec("ray") is None:
        raise ConfigError(
            "clusters need Ray: pip install 'quire[ray]', on every machine of the cluster"
        )


def _ray() -> Any:
    require_ray()
    import ray
    import ray.util

    return ray


def check_listens(address: str) -> None:
    """Check that something listens at ``address``: Ray itself retries for minutes without a
    message.

    Raises:
        EngineLost: nothing listens at ``address`` (HOST:PORT).
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except OSError as exc:
        raise EngineLost(f"Ray at {address} cannot be reached: {exc.strerror or exc}") from exc


class KeeperActor(HostedKeeper):
    """The keeper of one process, in a process of Ray's."""

    def __init__(self, spec_json: bytes, assignment: str) -> None:
        super().__init__(spec_json, assignment, _ray().util.get_node_ip_address())


class AutoscalerActor:
    """The autoscaler of a cluster, in a process of Ray's, on a thread of its own."""

    def __init__(self, expansion: Expansion) -> None:
        name, state_dir = expansion.cluster.name, expansion.state_dir
        keepers = RayCluster(name, state_dir, None).__enter__()
        self._autoscaler = Autoscaler(
            expansion, keepers, lambda states: node_loads(states, expansion.keys.admin)
        )
        threading.Thread(target=self._autoscaler.run, name="autoscale", daemon=True).start()

    def state(self) -> bytes:
        """Return the ``ScalingState`` as JSON."""
        return msgspec.json.encode(self._autoscaler.state)


class RayCluster:
    """The keepers of the cluster ``name``; implements ``rollout.Keepers``. As a context manager it
    makes this process a client of Ray. ``access`` is ``None`` in a process of Ray, which is a
    client already."""

    def __init__(self, name: str, state_dir: Path, access: RayAccess | None) -> None:
        self._name = name
        self._state_dir = state_dir
        self._access = access
        self._specs: dict[str, ProcessSpec] = {}
        self._ray: Any = None

    def __enter__(self) -> Self:
        """Connect. Raises ``EngineLost`` if Ray is not reached, ``ConfigError`` if it is not
        installed."""
        if self._access is None:
            self._ray = _ray()
            return self
        os.environ.update(self._access.environment())  # Ray reads these when it is imported
        require_ray()
        check_listens(self._access.address)
        self._ray = _ray()
        # Ray warns that an actor ends with its placement group, which is intended here
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            self._ray.init(
                address=self._access.address,
                namespace=f"quire-{self._name}",
                log_to_driver=False,
                configure_logging=False,
            )
        except Exception as exc:  # Ray raises many kinds
            raise EngineLost(
                f"Ray at {self._access.address} cannot be reached: {_first_line(exc)}"
            ) from exc
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._access is not None:
            self._ray.shutdown()

    def states(self) -> dict[str, ProcessState]:
        found = self._kept_states()
        return found | unkept_states(self._state_dir, found)

    def reserve(self, specs: Sequence[ProcessSpec]) -> None:
        made: list[Any] = []
        try:
            for places in missing_places(specs, self._places()):
                group = self._ray.util.placement_group(
                    [places.bundle] * len(places.indexes),
                    strategy=places.strategy.upper(),
                    name=places.name,
                    lifetime="detached",
                )
                made.append(group)
                if not group.wait(_PLACE_S):
                    raise PoolExhausted(self._no_room(places))
        except BaseException:  # also of Ctrl-C: what nobody uses others could not have
            for group in made:
                self._ray.util.remove_placement_group(group)
            raise

    def release(self, specs: Sequence[ProcessSpec]) -> None:
        for places in self._places():
            if not any(places.holds(spec) for spec in specs):
                group = self._ray.util.get_placement_group(places.name)
                self._ray.util.remove_placement_group(group)

    def assign(self, specs: Sequence[ProcessSpec]) -> None:
        self._kill([spec.name for spec in specs])
        present = self._places()
        for spec in specs:
            self._place(spec, present)
            self._specs[spec.name] = spec

    def stop(self, names: Sequence[str]) -> None:
        kept = set(self._names())
        self._call([name for name in names if name in kept], lambda actor: actor.stop.remote())
        unkept = [name for name in names if name not in kept]
        if unkept:
            others = {state.name for state in self.states().values()} - set(unkept)
            end_unkept(self._state_dir, others)

    def forget(self, names: Sequence[str]) -> None:
        self._call(names, lambda actor: actor.remove_files.remote())
        self._kill(names)

    def sweep(self) -> list[str]:
        """End what no keeper has on any machine of Ray, and remove the cluster's files there. The
        cluster's keepers must have been removed before. Return the names of what ran."""
        ray = self._ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        sweep = ray.remote(num_cpus=0)(sweep_machine)
        tasks = [
            sweep.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(self._state_dir)
            for node in ray.nodes()
            if node["Alive"]
        ]
        ended: list[str] = []
        for task in tasks:
            with contextlib.suppress(ray.exceptions.RayError):  # the machine was lost meanwhile
                ended += ray.get(task, timeout=_SWEEP_S)
        return ended

    def start_scaling(self, expansion: Expansion) -> None:
        """Let the groups of ``expansion`` that are scaled grow and shrink from now on."""
        actor = self._ray.remote(AutoscalerActor).options(
            name=_AUTOSCALER, lifetime="detached", max_restarts=-1, max_concurrency=2, num_cpus=0
        )
        actor.remote(expansion)

    def stop_scaling(self) -> None:
        """End the autoscaler; a change that is under way stays half done."""
        self._kill([_AUTOSCALER])

    def scaling(self) -> ScalingState | None:
        """Return the autoscaler's state; ``None`` if nothing is scaled, or if it does not
        answer."""
        answers = self._call([_AUTOSCALER], lambda actor: actor.state.remote())
        if _AUTOSCALER not in answers:
            return None
        return msgspec.json.decode(answers[_AUTOSCALER], type=ScalingState)

    def _kept_states(self) -> dict[str, ProcessState]:
        names = [name for name in self._names() if name != _AUTOSCALER]
        answers = self._call(names, lambda actor: actor.state.remote())
        return {
            name: msgspec.json.decode(answers[name], type=ProcessState)
            if name in answers
            else _unknown(name, self._specs.get(name))
            for name in names
        }

    def _names(self) -> list[str]:
        return [name for name in self._ray.util.list_named_actors() if name]

    def _call(
        self, names: Iterable[str], method: Callable[[Any], Any], timeout_s: float = _ANSWER_S
    ) -> dict[str, Any]:
        """Call ``method`` of each actor; return the answers that arrive in time, by name."""
        ray, calls = self._ray, {}
        for name in names:
            with contextlib.suppress(ValueError):  # the actor is dead
                calls[method(ray.get_actor(name))] = name
        if not calls:
            return {}
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s)
        answers = {}
        for call in ready:
            with contextlib.suppress(ray.exceptions.RayError):
                answers[calls[call]] = ray.get(call)
        return answers

    def _kill(self, names: Iterable[str]) -> None:
        """Remove the actors; their processes go on. Return when their names are free."""
        there = set(self._names()).intersection(names)
        for name in there:
            with contextlib.suppress(ValueError):
                self._ray.kill(self._ray.get_actor(name), no_restart=True)
        end_s = time.monotonic() + _GONE_S
        while there.intersection(self._names()):
            if time.monotonic() > end_s:
                raise EngineLost(f"Ray does not remove the keepers {', '.join(sorted(there))}")
            time.sleep(_INTERVAL_S)

    def _place(self, spec: ProcessSpec, present: Sequence[Places]) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        places, bundle = place_of(spec, present)
        actor = self._ray.remote(KeeperActor).options(
            name=spec.name,
            lifetime="detached",
            max_restarts=-1,
            max_concurrency=4,
            num_cpus=spec.cpus,
            num_gpus=spec.gpus,
            resources=spec.resources,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._ray.util.get_placement_group(places.name), bundle
            ),
        )
        actor.remote(msgspec.json.encode(spec), uuid4().hex)

    def _places(self) -> list[Places]:
        table = self._ray.util.placement_group_table()
        found = (
            parse_places(one["name"])
            for one in table.values()
            if one["state"] in ("CREATED", "PENDING", "RESCHEDULING")
        )
        return [places for places in found if places is not None and self._is_mine(places)]

    def _is_mine(self, places: Places) -> bool:
        """Return whether ``places`` is in our namespace: the table has those of all namespaces."""
        try:
            self._ray.util.get_placement_group(places.name)
        except ValueError:
            return False
        return True

    def _no_room(self, places: Places) -> str:
        total, free = self._ray.cluster_resources(), self._ray.available_resources()
        needed = ", ".join(f"{key} {value:g}" for key, value in places.bundle.items())
        have = ", ".join(
            f"{key} {free.get(key, 0):g} free of {total.get(key, 0):g}" for key in places.bundle
        )
        return (
            f"no room for {len(places.indexes)} of {places.group}: each needs {needed} on one "
            f"machine; Ray has {have} on all: lower what it needs, add "
            "machines to Ray, or, where both are changed in a full cluster, run 'quire down' before"
        )


def _unknown(name: str, spec: ProcessSpec | None) -> ProcessState:
    group = name.rpartition("-")[0]
    return ProcessState(
        name=name,
        group=group,
        kind="router" if group == _ROUTERS else "node",
        digest="" if spec is None else spec.digest,
        phase="unknown",
        url="http://unknown:0",
        detail="its keeper does not answer",
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
