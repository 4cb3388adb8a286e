"""Processes of this machine, identified so that no other process is taken for them.

Owns identity (process ids are used again; with the time of start they are unique), signals, and
waiting for the end of a process that is not our child. Needs Linux: /proc and pidfds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import NamedTuple

import msgspec

from quire.core.errors import ConfigError

_PROC = Path("/proc")


class ProcessIdentity(msgspec.Struct, frozen=True):
    """Identifies one process. ``start_ticks``: when it started, in clock ticks since the boot
    ``boot_id``."""

    pid: int
    start_ticks: int
    boot_id: str


class Stat(NamedTuple):
    """The fields of ``/proc/PID/stat`` that are used."""

    session: int
    start_ticks: int


def parse_stat(text: str) -> Stat | None:
    """Parse the content of ``/proc/PID/stat``; ``None`` for a zombie, which has ended."""
    fields = text.rpartition(")")[2].split()  # the name in parentheses may have spaces
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    return Stat(session=int(fields[3]), start_ticks=int(fields[19]))


def read_stat(pid: int) -> Stat | None:
    """Return the fields of a process; ``None`` if there is none, or if it has ended."""
    try:
        return parse_stat((_PROC / str(pid) / "stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def boot_id() -> str:
    """Return the id of this boot. Raises ``ConfigError`` if there is no /proc."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError as exc:
        raise ConfigError(
            f"processes of a cluster are kept with Linux's /proc, which is missing here: {exc}"
        ) from exc


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of the process that has ``pid`` now, if there is one."""
    stat = read_stat(pid)
    return None if stat is None else ProcessIdentity(pid, stat.start_ticks, boot_id())


def is_running(process: ProcessIdentity) -> bool:
    return identify(process.pid) == process


def send(process: ProcessIdentity, number: signal.Signals) -> bool:
    """Send a signal to exactly this process; return whether it still ran."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_running(process):  # after pidfd_open: it names one process for good
            return False
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


async def wait_ended(process: ProcessIdentity) -> None:
    """Wait until the process has ended, whoever its parent is."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        if not is_running(process):
            return
        loop.add_reader(fd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(fd)
    finally:
        os.close(fd)


def end_session(session: int, since_ticks: int, directory: Path | None = None) -> int:
    """Kill what is left of a session whose leader started at ``since_ticks``; return how many
    processes.

    The number of a session is not used again while a member lives, and a member is never older than
    its session. ``directory``: the working directory of its members, given for a session whose last
    member may have ended long ago.
    """
    num_killed = 0
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        stat = read_stat(int(entry.name))
        if stat is None or stat.session != session or stat.start_ticks < since_ticks:
            continue
        if directory is not None and not _runs_in(entry, directory):
            continue
        with contextlib.suppress(ProcessLookupError):
            num_killed += send(
                ProcessIdentity(int(entry.name), stat.start_ticks, boot_id()), signal.SIGKILL
            )
    return num_killed


def _runs_in(process: Path, directory: Path) -> bool:
    try:
        return (process / "cwd").readlink() == directory.resolve()
    except OSError:
        return False
