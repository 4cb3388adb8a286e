"""Starts a process that outlives its starter.

It gets a session of its own and no parent of ours, so that it outlives the caller, and Ray, which
ends the children of its workers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from quire.cluster.deployment.running import ProcessIdentity, boot_id, parse_stat
from quire.core.errors import EngineLost

_START = """
log=$1; file=$2; shift 2
"$@" </dev/null >>"$log" 2>&1 &
cat "/proc/$!/stat" >"$file.new" && mv "$file.new" "$file"
"""
"""The shell writes the process's identity, so that it is known even if the caller is killed
meanwhile."""

_TIMEOUT_S = 30.0


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    file: Path,
    directory: Path,
    environment: Mapping[str, str],
) -> ProcessIdentity | None:
    """Start ``command``; when this returns, its /proc/PID/stat is in ``file``, and its output goes
    to ``log``. Returns ``None`` if it has ended already. Blocks for some milliseconds.

    Raises:
        EngineLost: its identity cannot be written, so it was ended again: nobody could find it.
        OSError: the system starts no process, or the log cannot be written.
    """
    os.close(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    with subprocess.Popen(
        ["/bin/sh", "-c", _START, "quire-start", str(log), str(file), *command],
        cwd=directory,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as shell:
        try:
            is_known = shell.wait(_TIMEOUT_S) == 0
        except subprocess.TimeoutExpired:
            is_known = False
        if not is_known:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    if not is_known:
        raise EngineLost(
            f"{file} could not be written within {_TIMEOUT_S:g} s: see whether its disk is full"
        )
    return spawned(file, boot_id())


def spawned(file: Path, boot: str) -> ProcessIdentity | None:
    """Return the process that ``file`` describes; ``boot`` is the boot in which it was written."""
    found = _read(file)
    return None if found is None else ProcessIdentity(found[0], found[1], boot)


def session_of(file: Path) -> int | None:
    """Return the session of the process that ``file`` describes."""
    found = _read(file)
    return None if found is None else found[2]


def _read(file: Path) -> tuple[int, int, int] | None:
    try:
        text = file.read_text()
    except FileNotFoundError:
        return None
    stat = parse_stat(text)
    return (
        None if stat is None else (int(text.split(maxsplit=1)[0]), stat.start_ticks, stat.session)
    )
