"""What memory the machine has left, so that guests are refused before it has none."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def available_bytes(meminfo: Path = _MEMINFO) -> int | None:
    """What new programs can have without others losing theirs (proc(5), ``MemAvailable``);
    ``None`` where the system does not tell."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    return None


__all__ = ["available_bytes"]
