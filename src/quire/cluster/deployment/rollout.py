"""Carries out the plan for a cluster, wave by wave, and waits until each wave is ready.

Owns the order: nodes, then the routers that use them, and only then the end of nodes that leave.
``Keepers`` stands for what keeps the processes; a listener receives the progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from quire.cluster.deployment.expansion import Expansion
from quire.cluster.deployment.plan import (
    RolloutStep,
    Wave,
    leaving_waves,
    node_waves,
    router_waves,
)
from quire.cluster.deployment.process import ProcessSpec, ProcessState, url_of
from quire.core.errors import EngineLost

_INTERVAL_S = 0.5
_MAX_ENDS = 3
"""A process that has ended so often without being ready will not become ready."""


class Keepers(Protocol):
    """The keepers of one cluster's processes, on whichever machines. Its methods block; it has one
    caller."""

    def states(self) -> dict[str, ProcessState]:
        """Return the states of all processes that are kept, and of those on this machine without a
        keeper."""
        ...

    def reserve(self, specs: Sequence[ProcessSpec]) -> None:
        """Reserve places for all of these, beside the places that are taken.

        Raises:
            CapacityError: no machine has room for one of them.
        """
        ...

    def release(self, specs: Sequence[ProcessSpec]) -> None:
        """Give up all places but those of ``specs``."""
        ...

    def assign(self, specs: Sequence[ProcessSpec]) -> None:
        """Have each process kept as its spec says; its former keeper is removed, and a process that
        runs as the spec says goes on. The processes have places. Returns before they are ready."""
        ...

    def stop(self, names: Sequence[str]) -> None:
        """Begin to drain and end the processes."""
        ...

    def forget(self, names: Sequence[str]) -> None:
        """Remove the keepers and files of processes that are stopped."""
        ...


class RolloutListener(Protocol):
    def planned(self, wave: Wave) -> None: ...

    def changed(self, state: ProcessState) -> None:
        """Note that the state of a process of the present wave has changed."""
        ...


class Rollout:
    """Makes a cluster what is wanted. ``sleep`` waits between two looks at the processes, which
    report nothing by themselves."""

    def __init__(
        self,
        keepers: Keepers,
        listener: RolloutListener,
        *,
        ready_timeout_s: float,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._keepers = keepers
        self._listener = listener
        self._ready_timeout_s = ready_timeout_s
        self._now_s = now_s
        self._sleep = sleep
        self._shown: dict[str, tuple[str, str]] = {}

    def up(self, wanted: Expansion) -> None:
        """Make the cluster what ``wanted`` describes.

        Raises:
            QuireError: something is not ready in time; what was not yet changed stays as it is.
        """
        nodes = wanted.nodes()
        places = (*nodes, *wanted.routers({}))
        self._keepers.reserve(places)
        for wave in node_waves(nodes, self._keepers.states()):
            self._do(wave)
        states = self._keepers.states()
        for wave in router_waves(wanted.routers(_urls(nodes, states)), states):
            self._do(wave)
        for wave in leaving_waves(nodes, self._keepers.states()):
            self._do(wave)
        self._keepers.release(places)

    def down(self) -> None:
        """End every process: routers first, so that no request is sent to what is leaving."""
        states = self._keepers.states().values()
        for kind in ("router", "node"):
            names = sorted(state.name for state in states if state.kind == kind)
            if names:
                self._do(
                    tuple(RolloutStep("stop", name, "the cluster is to end") for name in names)
                )
        self._keepers.release(())

    def _do(self, wave: Wave) -> None:
        self._listener.planned(wave)
        # stop first: a process may be placed on another machine afterwards
        stopped = [step.name for step in wave if step.action in ("replace", "stop")]
        if stopped:
            self._keepers.stop(stopped)
            self._wait_stopped(stopped)
            self._keepers.forget(stopped)
        specs = [step.spec for step in wave if step.spec is not None]
        if specs:
            self._keepers.assign(specs)
            self._wait_ready({spec.name: spec for spec in specs})

    def _wait_ready(self, specs: dict[str, ProcessSpec]) -> None:
        begun_s = self._now_s()
        waiting = dict(specs)
        restarts: dict[str, int] = {}
        while True:
            states = self._keepers.states()
            for name, spec in list(waiting.items()):
                state = states.get(name)
                if state is None or state.digest != spec.digest or not state.kept:
                    continue
                self._show(state)
                if state.phase == "ready" and state.nodes == spec.nodes:
                    del waiting[name]
                    continue
                first = restarts.setdefault(name, state.restarts)
                if state.phase == "failed" or state.restarts - first >= _MAX_ENDS:
                    raise EngineLost(f"{name} does not become ready: {_last_words(state)}")
            if not waiting:
                return
            if self._now_s() - begun_s > self._ready_timeout_s:
                name = next(iter(waiting))
                told = _last_words(states[name]) if name in states else "it was not placed"
                raise EngineLost(
                    f"{name} is not ready after {self._ready_timeout_s:g} s (ready_timeout): {told}"
                )
            self._sleep(_INTERVAL_S)

    def _wait_stopped(self, names: Sequence[str]) -> None:
        """Wait until the processes have ended. Their keepers kill what does not drain in time, if
        their machine lives."""
        begun_s = self._now_s()
        while True:
            states = self._keepers.states()
            found = [states[name] for name in names if name in states]
            for state in found:
                self._show(state)
            left = [state for state in found if state.phase not in ("stopped", "failed")]
            if not left:
                return
            if self._now_s() - begun_s > self._ready_timeout_s:
                raise EngineLost(
                    f"{left[0].name} has not ended after {self._ready_timeout_s:g} s "
                    f"(ready_timeout), on {left[0].machine or 'an unknown machine'}: "
                    f"{_last_words(left[0])}"
                )
            self._sleep(_INTERVAL_S)

    def _show(self, state: ProcessState) -> None:
        shown = (state.phase, state.detail)
        if self._shown.get(state.name) != shown:
            self._shown[state.name] = shown
            self._listener.changed(state)


def _urls(nodes: Sequence[ProcessSpec], states: Mapping[str, ProcessState]) -> dict[str, str]:
    """Return the URL of each node by its name: of a node whose keeper does not answer now, the one
    that the routers use.

    Raises:
        EngineLost: no router knows such a node.
    """
    found = {name: url for state in states.values() for name, url in state.nodes.items()}
    found |= {name: state.url for name, state in states.items() if state.phase != "unknown"}
    for spec in nodes:
        if spec.name not in found:
            raise EngineLost(f"the keeper of {spec.name} does not answer: run 'quire up' again")
    return {spec.name: found[spec.name] for spec in nodes}


def planned_waves(wanted: Expansion, states: Mapping[str, ProcessState]) -> list[Wave]:
    """Return all waves that ``Rollout.up`` would carry out. A node that is not placed yet is
    expected on the machine of the process of that name, or on loopback."""
    nodes = wanted.nodes()
    urls = {spec.name: _expected_url(spec, states.get(spec.name)) for spec in nodes}
    return [
        *node_waves(nodes, states),
        *router_waves(wanted.routers(urls), states),
        *leaving_waves(nodes, states),
    ]


def _expected_url(spec: ProcessSpec, state: ProcessState | None) -> str:
    if spec.listens == "loopback":
        return url_of("127.0.0.1", spec.port)
    return url_of(state.machine if state is not None else "a-machine", spec.port)


def _last_words(state: ProcessState) -> str:
    said = "\n  ".join(state.said) or "(it said nothing)"
    return f"{state.detail or state.phase}; it last said:\n  {said}"
