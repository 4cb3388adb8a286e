"""Keepers that only pretend, and a time that passes when somebody sleeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from quire.cluster.deployment.plan import Wave
from quire.cluster.deployment.process import ProcessSpec, ProcessState
from quire.core.errors import PoolExhausted


@dataclass(slots=True)
class PretendedKeepers:
    """Each process is ready, or has ended, at the third look; ``never``: those of which that is not
    so. ``broken``: those that end again and again. ``deaf``: routers that keep their nodes.
    ``done``: what was asked for, in order."""

    found: dict[str, ProcessState] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    never: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    deaf: set[str] = field(default_factory=set)
    places: set[str] = field(default_factory=set)
    num_places: int = 100
    done: list[str] = field(default_factory=list)

    def states(self) -> dict[str, ProcessState]:
        for name, state in self.found.items():
            self.looks[name] = self.looks.get(name, 0) + 1
            if name in self.broken:
                said = ("no such model",)
                state = msgspec.structs.replace(state, restarts=self.looks[name], said=said)
            elif self.looks[name] >= 3 and name not in self.never:
                after = {"starting": "ready", "stopping": "stopped"}
                state = msgspec.structs.replace(state, phase=after.get(state.phase, state.phase))
            self.found[name] = state
        return dict(self.found)

    def reserve(self, specs: Sequence[ProcessSpec]) -> None:
        if len(self.places | {one.name for one in specs}) > self.num_places:
            raise PoolExhausted("no room")
        self.places |= {one.name for one in specs}

    def release(self, specs: Sequence[ProcessSpec]) -> None:
        self.places &= {one.name for one in specs}

    def assign(self, specs: Sequence[ProcessSpec]) -> None:
        for one in specs:
            assert one.name in self.places
            former = self.found.get(one.name)
            assert former is None or former.phase == "stopped" or former.digest == one.digest
            self.done.append(f"assign {one.name}")
            self.looks[one.name] = 0
            self.found[one.name] = ProcessState(
                name=one.name,
                group=one.group,
                kind=one.kind,
                digest=one.digest,
                phase="starting",
                url=f"http://127.0.0.1:{one.port}",
                nodes=former.nodes if former and one.name in self.deaf else one.nodes,
            )

    def stop(self, names: Sequence[str]) -> None:
        for name in names:
            self.done.append(f"stop {name}")
            self.looks[name] = 0
            self.found[name] = msgspec.structs.replace(self.found[name], phase="stopping")

    def forget(self, names: Sequence[str]) -> None:
        for name in names:
            assert self.found.pop(name).phase == "stopped"


@dataclass(slots=True)
class Told:
    waves: list[Wave] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)

    def planned(self, wave: Wave) -> None:
        self.waves.append(wave)

    def changed(self, state: ProcessState) -> None:
        self.changes.append(f"{state.name} {state.phase}")

    def ray(self, words: str) -> None:
        self.changes.append(words)


@dataclass(slots=True)
class Time:
    now: float = 0.0

    def now_s(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
