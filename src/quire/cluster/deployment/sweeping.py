"""Processes of a cluster on this machine without a keeper: their states, and their end.

Owns what is done without Ray. Only what a folder describes exactly (process id, time of start,
boot) is ever signalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Collection
from pathlib import Path

import httpx

from quire.cluster.deployment.child import end_child, running_child
from quire.cluster.deployment.folder import (
    ProcessFolder,
    StartRecord,
    process_folders,
    remove_if_empty,
)
from quire.cluster.deployment.process import Phase, ProcessState

_KILL_MARGIN_S = 10.0
_PROBE_TIMEOUT_S = 2.0


def unkept_states(state_dir: Path, kept: Collection[str]) -> dict[str, ProcessState]:
    """Return the states of the processes that run here and are not among ``kept``, by name."""
    found = {}
    for folder in process_folders(state_dir):
        if folder.name in kept:
            continue
        state = _state(folder)
        if state is not None:
            found[folder.name] = state
    return found


def ended_states(state_dir: Path, known: Collection[str]) -> dict[str, ProcessState]:
    """Return the states of the processes that have run here, have ended, and are not among
    ``known``, by name: nothing starts them again."""
    found = {}
    for folder in process_folders(state_dir):
        record = None if folder.name in known else folder.record()
        if record is not None and running_child(folder) is None:
            found[folder.name] = _state_of(folder, record, "stopped")
    return found


def end_unkept(state_dir: Path, kept: Collection[str] = ()) -> list[str]:
    """Drain and end the processes that run here, are not among ``kept`` and have no keeper, and
    remove their files; return the names of those that ran. Blocks while they drain."""
    return asyncio.run(_end_all([f for f in process_folders(state_dir) if f.name not in kept]))


def sweep_machine(state_dir: Path) -> list[str]:
    """Do the same with all that runs here, and remove the cluster's folder, unless it has other
    files: those of the machine on which ``quire up`` was run."""
    ended = end_unkept(state_dir)
    remove_if_empty(state_dir)
    return ended


def remove_state(state_dir: Path) -> None:
    """Remove the cluster's folder and, if it was the last one, the folder above for all
    clusters."""
    shutil.rmtree(state_dir, ignore_errors=True)
    with contextlib.suppress(OSError):  # the folder has other clusters
        state_dir.parent.rmdir()


def _state(folder: ProcessFolder) -> ProcessState | None:
    record, child = folder.record(), running_child(folder)
    if record is None or child is None:
        return None
    return _state_of(folder, record, _phase(record.url), child.pid)


def _state_of(
    folder: ProcessFolder, record: StartRecord, phase: Phase, pid: int | None = None
) -> ProcessState:
    spec = record.spec
    return ProcessState(
        name=spec.name,
        group=spec.group,
        kind=spec.kind,
        digest=spec.digest,
        phase=phase,
        url=record.url,
        nodes=spec.nodes,
        machine="this machine",
        pid=pid,
        since_unix_s=None if pid is None else record.started_unix_s,
        restarts=record.restarts,
        kept=False,
        detail="nothing keeps it" if pid is not None else "it has ended, and nothing keeps it",
        said=folder.said(),
    )


def _phase(url: str) -> Phase:
    try:
        answer = httpx.get(f"{url}/ready", timeout=_PROBE_TIMEOUT_S, trust_env=False)
    except httpx.HTTPError:
        return "unready"
    return "ready" if answer.status_code == httpx.codes.OK else "unready"


async def _end_all(folders: list[ProcessFolder]) -> list[str]:
    ended = await asyncio.gather(*(_end(folder) for folder in folders))
    return [name for name in ended if name is not None]


async def _end(folder: ProcessFolder) -> str | None:
    with folder.locked() as is_free:
        if not is_free:
            return None
        record, child = folder.record(), running_child(folder)
        if record is not None and child is not None:
            await end_child(folder, child, record.spec.drain_s + _KILL_MARGIN_S)
        folder.remove()
    return folder.name if child is not None else None
