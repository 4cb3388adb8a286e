"""Small processes in the place of nodes, and keepers of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quire.cluster.deployment.folder import ProcessFolder, process_folder
from quire.cluster.deployment.keeper import Keeper, KeeperTimes, Readiness
from quire.cluster.deployment.process import ProcessSpec, ProcessState

SLEEPS = "exec sleep 1000"
STUBBORN = "trap '' TERM; exec sleep 1000"
BROKEN = "echo 'no such model'; exit 1"


def spec(name: str = "node-0", *, port: int = 8101, **changes: object) -> ProcessSpec:
    """A node; ``arguments`` are a script of the shell for ``keeper``."""
    group, _, index = name.rpartition("-")
    values: dict[str, object] = {
        "cluster": "small",
        "name": name,
        "group": group,
        "index": int(index),
        "kind": "router" if group == "router" else "node",
        "arguments": (SLEEPS,),
        "port": port,
        "listens": "loopback",
        "directory": "/",
        "state_dir": "/nowhere",
        "cpus": 1.0,
        "gpus": 0.0,
        "placement": "spread",
        "drain_s": 20.0,
    }
    return ProcessSpec(**(values | changes))  # type: ignore[arg-type]


@dataclass(slots=True)
class QuickClock:
    """Sleeps hardly, and remembers for how long it should have; its time is what it slept."""

    slept: list[float] = field(default_factory=list)
    time_s: float = 0.0

    def now_s(self) -> float:
        return self.time_s

    def unix_s(self) -> float:
        return 1_700_000_000.0 + self.time_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time_s += seconds
        await asyncio.sleep(0.005)


def keeper(
    wanted: ProcessSpec,
    state_dir: Path,
    *,
    assignment: str = "first",
    is_ready: Callable[[], bool] = lambda: True,
    why_not: Callable[[], str] = lambda: "",
    clock: QuickClock | None = None,
    kill_margin_s: float = 20.0,
    environment: Mapping[str, str] = os.environ,
    tell: Callable[[str, ProcessSpec], str] = lambda url, spec: "",
    commands: list[list[str]] | None = None,
    is_taken: Callable[[str, int], bool] = lambda host, port: False,
) -> tuple[Keeper, ProcessFolder]:
    async def probe(url: str) -> Readiness:
        return Readiness(is_ready(), "" if is_ready() else why_not())

    async def told(url: str, spec: ProcessSpec) -> str:
        return tell(url, spec)

    def command_of(wanted: ProcessSpec, host: str, keys_in: str) -> list[str]:
        """``commands`` are those of the real thing."""
        if commands is not None:
            commands.append(wanted.command(host, keys_in))
        return ["/bin/sh", "-c", *wanted.arguments]

    folder = process_folder(state_dir, wanted.name)
    made = Keeper(
        wanted,
        folder,
        assignment,
        host="127.0.0.1",
        machine="here",
        environment=environment,
        probe=probe,
        tell=told,
        clock=clock or QuickClock(),
        is_taken=is_taken,
        command_of=command_of,
        times=KeeperTimes(probe_s=0.5, lock_s=0.2, kill_margin_s=kill_margin_s),
    )
    return made, folder


async def until(kept: Keeper, holds: Callable[[ProcessState], bool]) -> ProcessState:
    """The first state for which ``holds``."""
    await eventually(lambda: holds(kept.state))
    return kept.state


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for what another process does; the test's own time limit bounds it."""
    while not holds():  # noqa: ASYNC110 - nothing here is told of it
        await asyncio.sleep(0.005)
