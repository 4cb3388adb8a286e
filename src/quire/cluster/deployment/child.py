"""Starts the process of a folder, finds the one that runs, and ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from quire.cluster.deployment.folder import ProcessFolder, StartRecord, write_private
from quire.cluster.deployment.running import (
    ProcessIdentity,
    end_session,
    is_running,
    send,
    wait_ended,
)
from quire.cluster.deployment.spawning import spawn
from quire.core.errors import ConfigError, EngineLost


def running_child(folder: ProcessFolder) -> ProcessIdentity | None:
    """Return the process that was started in ``folder``, if it still runs."""
    child = folder.child()
    return child if child is not None and is_running(child) else None


def start_child(
    folder: ProcessFolder,
    record: StartRecord,
    command: Sequence[str],
    environment: Mapping[str, str],
) -> ProcessIdentity:
    """Write ``record``, then start ``command``, the process that it describes. Blocks for some
    milliseconds.

    Raises:
        ConfigError: the folder in which it is to run does not exist on this machine.
        EngineLost: it ended before anybody could see it, or its identity cannot be written.
        OSError: the folder cannot be written, or the system starts no process.
    """
    spec = record.spec
    if not Path(spec.directory).is_dir():
        raise ConfigError(
            f"{spec.name} runs in the folder of the cluster's file, {spec.directory}, which this "
            "machine lacks: make it there, too"
        )
    for name, key in spec.keys.items():
        write_private(folder.path / name, key.encode() + b"\n")
    folder.write_record(record)
    child = spawn(
        command,
        log=folder.log,
        file=folder.child_file,
        directory=Path(spec.directory),
        environment=environment,
    )
    if child is None:
        raise EngineLost(f"{spec.name} could not be started: 'quire doctor' shows what is missing")
    return child


async def end_child(folder: ProcessFolder, child: ProcessIdentity, grace_s: float) -> None:
    """End ``child``: SIGTERM, which drains it, then SIGKILL after ``grace_s``. Idempotent."""
    if send(child, signal.SIGTERM):
        try:
            await asyncio.wait_for(wait_ended(child), grace_s)
        except TimeoutError:
            send(child, signal.SIGKILL)
            await wait_ended(child)
    end_rest(folder, child)


def end_rest(folder: ProcessFolder, child: ProcessIdentity) -> None:
    """Kill what an ended child has left in its session, where it would keep ports and memory."""
    session = folder.session()
    if session is not None:
        end_session(session, child.start_ticks)
