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
    """What was started in ``folder`` and runs."""
    child = folder.child()
    return child if child is not None and is_running(child) else None


def start_child(
    folder: ProcessFolder,
    record: StartRecord,
    command: Sequence[str],
    environment: Mapping[str, str],
) -> ProcessIdentity:
    """Start ``command``, the process of ``record``, which is written first. Blocks for some
    milliseconds.

    Raises:
        ConfigError: the folder in which it is to run does not exist on this machine.
        EngineLost: it ended before anybody could see it.
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
    """SIGTERM, which drains it; SIGKILL for what is there after ``grace_s``. Idempotent."""
    if send(child, signal.SIGTERM):
        try:
            await asyncio.wait_for(wait_ended(child), grace_s)
        except TimeoutError:
            send(child, signal.SIGKILL)
            await wait_ended(child)
    end_rest(folder, child)


def end_rest(folder: ProcessFolder, child: ProcessIdentity) -> None:
    """What an ended child left in its session would keep its ports and its memory."""
    session = folder.session()
    if session is not None:
        end_session(session, child.start_ticks)
