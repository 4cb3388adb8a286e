"""Reads how much memory the machine or this process's container has left. Guests are refused before
it runs out.

A container's limit is that of its control group (cgroups(7)), version 1 or 2, and of every group
above it that is visible from here. Files are found and opened once, because that takes several
times as long as reading them, and launches wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from quire.core.errors import CapacityError

KEPT_FREE_BYTES = 512 << 20
"""With less memory left on the machine no further guest starts, because running guests may still
grow."""
_CHECK_EVERY = 16
"""Guests between two checks: reading the machine's memory costs a seventh of a launch."""

_ROOT = Path("/")
_UNLIMITED = 1 << 60
"""Version 1 has a number for "no limit", slightly below 2**63."""
_MAX_FILE_BYTES = 1 << 16


class MachineRoom:
    """Checks whether the machine has memory for one more guest; shared by all guests of a
    process."""

    def __init__(self, available: Callable[[], int | None] | None = None) -> None:
        self._available = available or MachineMemory().available_bytes
        self._num_until_check = 0

    def check(self) -> None:
        """Check the memory; called when a guest starts.

        Raises:
            CapacityError: the machine has hardly any memory left.
        """
        self._num_until_check -= 1
        if self._num_until_check > 0:
            return
        left_bytes = self._available()
        if left_bytes is not None and left_bytes < KEPT_FREE_BYTES:
            self._num_until_check = 0  # the next guest checks again
            raise CapacityError(
                f"the machine or its container has {left_bytes >> 20} MiB of memory left; "
                f"sandboxed programs start with at least {KEPT_FREE_BYTES >> 20} MiB: launch again "
                "when others have ended"
            )
        self._num_until_check = _CHECK_EVERY


class MachineMemory:
    """Reads the system's files. ``root``: the directory that contains ``proc`` and ``sys``. Used by
    one thread."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self._machine = _KeptFile(root / "proc/meminfo")
        self._own_groups = _KeptFile(root / "proc/self/cgroup")
        self._said = b""
        self._groups: list[_Group] = []

    def available_bytes(self) -> int | None:
        """Memory that new programs can use without swapping: of the machine (proc(5),
        ``MemAvailable``) or of the control group with the least, whichever is less; ``None`` if the
        system reports neither."""
        # the first call, or the process was moved
        if (said := self._own_groups.read()) != self._said:
            self._groups = [_Group(version, path) for version, path in _groups(self._root, said)]
            self._said = said
        of_machine = self._machine.number(b"MemAvailable:")
        known = [] if of_machine is None else [of_machine << 10]
        known += [left for group in self._groups if (left := group.left_bytes()) is not None]
        return min(known, default=None)


@dataclass(frozen=True, slots=True)
class _Version:
    """The files of one version of control groups. ``cache``: the line of ``memory.stat`` with
    memory that is counted but can be reclaimed: file pages that were not used lately."""

    mount: str
    limit: str
    used: str
    cache: bytes


_VERSION_1 = _Version(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    b"total_inactive_file",
)
_VERSION_2 = _Version("sys/fs/cgroup", "memory.max", "memory.current", b"inactive_file")


class _Group:
    """One control group, if ``path`` is one."""

    def __init__(self, version: _Version, path: Path) -> None:
        self._limit = _KeptFile(path / version.limit)
        self._used = _KeptFile(path / version.used)
        self._statistics = _KeptFile(path / "memory.stat")
        self._cache = version.cache

    def left_bytes(self) -> int | None:
        """The memory that the group may still use; ``None`` if it has no limit now, or does not
        exist."""
        limit = self._limit.number()
        if limit is None or limit >= _UNLIMITED:
            return None
        used = self._used.number()
        if used is None:
            return None
        cache = self._statistics.number(self._cache) or 0
        return max(0, limit - max(0, used - cache))


def _groups(root: Path, said: bytes) -> Iterator[tuple[_Version, Path]]:
    """The control group of this process and those above it, if they are visible: in a container its
    own group is often mounted as the root, and its path does not exist here. ``said``: the contents
    of ``/proc/self/cgroup``."""
    for line in os.fsdecode(said).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            version = _VERSION_1
        elif number == "0" and not controllers:
            version = _VERSION_2
        else:
            continue
        mount = root / version.mount
        group = mount / path.lstrip("/")
        while group != mount:
            yield version, group
            group = group.parent
        yield version, mount


class _KeptFile:
    """A file that the system generates for each read. A file that does not exist reads as empty."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = None

    def read(self) -> bytes:
        if self._descriptor is None:
            return b""
        try:
            return os.pread(self._descriptor, _MAX_FILE_BYTES, 0)
        except OSError:  # the control group was removed
            return b""

    def number(self, name: bytes | None = None) -> int | None:
        """The number in the line that begins with ``name``, or in a file of one line. ``None``:
        there is no such file or line, or no number ("max")."""
        for line in self.read().splitlines():
            words = line.split()
            if name is None and words:
                return int(words[0]) if words[0].isdigit() else None
            if len(words) > 1 and words[0] == name:
                return int(words[1]) if words[1].isdigit() else None
        return None

    def __del__(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
