"""Processor time of a process and its children, as the kernel counts it (Linux).

What a contender computes takes the same processor time on a busy machine as on a quiet one, but for
threads that spin while they wait.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.process_memory import tree


def cpu_s(pid: int) -> float:
    """Of ``pid`` and all its descendants that live, since their starts; 0 where the system does not
    report it. Counted in hundredths of a second on most systems."""
    return sum(map(_of_one, tree(pid))) / os.sysconf("SC_CLK_TCK")


def _of_one(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0  # it has ended
    fields = text.rpartition(")")[2].split()  # behind the name, which may contain anything
    return int(fields[11]) + int(fields[12])
