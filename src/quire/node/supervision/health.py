"""The health of engines and sandbox: frozen snapshots, and the legal transitions between an
engine's states.

Knows nothing of how engines run; ``supervisor`` changes the states, ``node`` collects them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from quire.core.ids import EngineId


class EngineReadiness(StrEnum):
    """LOADING: first start. SILENT: ready, but a heartbeat is overdue. RESTARTING: lost, being
    started again. FAILED: given up, with the reason kept. STOPPED: closed by the node."""

    LOADING = "loading"
    READY = "ready"
    SILENT = "silent"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


SILENT_AFTER_S = 10.0
"""Several heartbeats. A process that is merely slow still answers them, on a thread of its own."""

TRANSITIONS: Mapping[EngineReadiness, frozenset[EngineReadiness]] = {
    EngineReadiness.LOADING: frozenset(
        {
            EngineReadiness.READY,
            EngineReadiness.RESTARTING,
            EngineReadiness.FAILED,
            EngineReadiness.STOPPED,
        }
    ),
    EngineReadiness.READY: frozenset(
        {EngineReadiness.RESTARTING, EngineReadiness.FAILED, EngineReadiness.STOPPED}
    ),
    EngineReadiness.RESTARTING: frozenset(
        {
            EngineReadiness.READY,
            EngineReadiness.RESTARTING,
            EngineReadiness.FAILED,
            EngineReadiness.STOPPED,
        }
    ),
    EngineReadiness.FAILED: frozenset({EngineReadiness.STOPPED}),
    EngineReadiness.STOPPED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """``detail`` says why the engine is not ready, what it is loading, or what a ready engine
    lacks; ``progress`` is 0 to 1."""

    state: EngineReadiness
    detail: str = ""
    restarts: int = 0
    progress: float = 0.0


def with_silence(health: EngineHealth, silent_s: float) -> EngineHealth:
    """``health`` as it is reported while a heartbeat has been unanswered for ``silent_s``. The
    state itself does not change: the answer may arrive at any moment."""
    detail = silence(silent_s)
    if health.state is not EngineReadiness.READY or detail is None:
        return health
    return replace(health, state=EngineReadiness.SILENT, detail=detail)


def silence(silent_s: float) -> str | None:
    """The detail to report of a process that has not answered a heartbeat for ``silent_s``;
    ``None``: it is not overdue yet."""
    if silent_s < SILENT_AFTER_S:
        return None
    return f"its process has given no sign of life for {silent_s:.0f} s"


class SandboxState(StrEnum):
    """IDLE: no process; the first program starts one. UNAVAILABLE: this installation has no runtime
    for it. PAUSED: it was lost again and again, and no program is started in it for a while."""

    IDLE = "idle"
    UNAVAILABLE = "unavailable"
    STARTING = "starting"
    READY = "ready"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class SandboxHealth:
    """One process for untrusted programs. ``detail`` says what is missing, what a process that
    starts is doing (building the Python sandbox takes minutes on a busy machine), why it is paused
    and until when, or that a heartbeat is overdue. ``losses``: how often the process was lost since
    the node began."""

    state: SandboxState
    detail: str = ""
    losses: int = 0


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """``ready``: new work is accepted, and for every model an engine can do it.

    ``alive``: every model has an engine that is not dead (loading and draining count as alive).
    ``detail``: the first reason why the node is not ready. Of a node that is ready: what is wrong
    with an engine whose model has others, or with a process of its ``sandbox``. ``models``: whether
    an engine of each model can do work; none can if the node itself has failed.
    """

    ready: bool
    alive: bool
    draining: bool
    engines: Mapping[EngineId, EngineHealth]
    sandbox: Mapping[str, SandboxHealth]
    models: Mapping[str, bool]
    detail: str = ""


_SANDBOX_AS_USUAL = (SandboxState.UNAVAILABLE, SandboxState.STARTING)
"""Where ``detail`` of a sandbox process is no reason for concern: it was never there, or starts."""

_DEAD = (EngineReadiness.SILENT, EngineReadiness.RESTARTING, EngineReadiness.FAILED)


def _by_model(
    engines: Mapping[EngineId, EngineHealth],
) -> Mapping[str, Mapping[EngineId, EngineHealth]]:
    """The engines of each model, whose ids differ in the number behind the model's name alone."""
    groups: dict[str, dict[EngineId, EngineHealth]] = {}
    for engine, health in engines.items():
        groups.setdefault(engine.rpartition("#")[0] or engine, {})[engine] = health
    return groups


def node_health(
    engines: Mapping[EngineId, EngineHealth],
    sandbox: Mapping[str, SandboxHealth],
    *,
    draining: bool,
    failure: str | None,
) -> NodeHealth:
    """Join the states of engines and sandbox; ``failure``: why the control thread has died."""
    reasons = ([failure] if failure else []) + (["the node is draining"] if draining else [])
    besides: list[str] = []
    dead = False
    models: dict[str, bool] = {}
    for model, replicas in _by_model(engines).items():
        unready = [
            f"engine {engine} is {health.state}" + (f": {health.detail}" if health.detail else "")
            for engine, health in replicas.items()
            if health.state is not EngineReadiness.READY
        ]
        models[model] = len(unready) < len(replicas) and failure is None
        if len(unready) == len(replicas):
            reasons += unready
            dead |= all(health.state in _DEAD for health in replicas.values())
        else:
            besides += unready
    besides += [
        f"sandbox {name}: {one.detail}"
        for name, one in sandbox.items()
        if one.detail and one.state not in _SANDBOX_AS_USUAL
    ]
    return NodeHealth(
        ready=not reasons,
        alive=failure is None and not dead,
        draining=draining,
        engines=dict(engines),
        sandbox=dict(sandbox),
        models=models,
        detail=next(iter(reasons + besides), ""),
    )
