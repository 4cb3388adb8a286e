"""What memory the machine or this process's container has left, and that guests are refused before
there is none.

A container's limit is that of its control group (cgroups(7)), of version 1 or 2, and of every group
above it that can be seen from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from quire.core.errors import CapacityError

KEPT_FREE_BYTES = 512 << 20
"""With less memory left on the machine no further guest begins: those that run may still grow."""
_CHECK_EVERY = 16
"""Guests: to ask for the machine's memory costs a twentieth of a launch."""

_ROOT = Path("/")
_UNLIMITED = 1 << 60
"""Version 1 has a number for it, a little below 2**63."""


class MachineRoom:
    """Whether the machine has room for one more guest; all that a process begins ask one of it."""

    def __init__(self, available: Callable[[], int | None] | None = None) -> None:
        self._available = available or available_bytes
        self._num_until_check = 0

    def check(self) -> None:
        """A guest begins.

        Raises:
            CapacityError: the machine has hardly any memory left.
        """
        self._num_until_check -= 1
        if self._num_until_check > 0:
            return
        left_bytes = self._available()
        if left_bytes is not None and left_bytes < KEPT_FREE_BYTES:
            self._num_until_check = 0  # the next one asks again
            raise CapacityError(
                f"the machine or its container has {left_bytes >> 20} MiB of memory left, and "
                f"sandboxed programs begin with at least {KEPT_FREE_BYTES >> 20}: launch again "
                "when others have ended"
            )
        self._num_until_check = _CHECK_EVERY


@dataclass(frozen=True, slots=True)
class _Group:
    """Where one version of control groups says what. ``cache``: the line of ``memory.stat`` with
    what is counted and can be given up: pages of files that were not used lately."""

    mount: str
    limit: str
    used: str
    cache: str


_VERSION_1 = _Group(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
)
_VERSION_2 = _Group("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def available_bytes(root: Path = _ROOT) -> int | None:
    """What new programs can have without others losing theirs: of the machine (proc(5),
    ``MemAvailable``) or of the tightest control group, whichever is less; ``None`` where the system
    tells neither. ``root``: where ``proc`` and ``sys`` are."""
    of_machine = _number(root / "proc/meminfo", "MemAvailable:")
    known = [] if of_machine is None else [of_machine << 10]
    for kind, group in _groups(root):
        left = _left_of(kind, group)
        if left is not None:
            known.append(left)
    return min(known, default=None)


def _groups(root: Path) -> Iterator[tuple[_Group, Path]]:
    """That of this process and those above it, as far as they can be seen: in a container its own
    is often mounted as the first, and its path names nothing here."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            kind = _VERSION_1
        elif number == "0" and not controllers:
            kind = _VERSION_2
        else:
            continue
        mount = root / kind.mount
        group = mount / path.lstrip("/")
        while group != mount:
            yield kind, group
            group = group.parent
        yield kind, mount


def _left_of(kind: _Group, group: Path) -> int | None:
    """``None``: it has no limit, or is none."""
    limit = _number(group / kind.limit)
    if limit is None or limit >= _UNLIMITED:
        return None
    used = _number(group / kind.used)
    if used is None:
        return None
    cache = _number(group / "memory.stat", kind.cache) or 0
    return max(0, limit - max(0, used - cache))


def _number(file: Path, name: str | None = None) -> int | None:
    """That of the line that begins with ``name``, or of a file of one line. ``None``: there is no
    such file or line, or no number ("max")."""
    for line in _lines(file):
        words = line.split()
        if name is None and words:
            return int(words[0]) if words[0].isdecimal() else None
        if len(words) > 1 and words[0] == name:
            return int(words[1]) if words[1].isdecimal() else None
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []


__all__ = ["KEPT_FREE_BYTES", "MachineRoom", "available_bytes"]
