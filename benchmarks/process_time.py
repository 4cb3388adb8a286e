"""Measures the processor time of a process and its children, as the kernel counts it (Linux).

What a contender computes takes the same processor time on a busy machine as on a quiet one, but for
threads that spin while they wait.
"""

from __future__ import annotations

import time

from benchmarks.process_memory import tree


def cpu_s(pid: int) -> float:
    """Return the processor time of ``pid`` and its living descendants, each since its start."""
    return sum(map(cpu_s_of_one, tree(pid)))


def cpu_s_of_one(pid: int) -> float:
    """Return the processor time of one process by its own clock: its accounts in ``/proc`` count
    hundredths of a second, which is what a router takes for 500 events."""
    try:
        return time.clock_gettime(~pid << 3 | _RUN_TIME)
    except OSError:
        return 0.0  # it has ended


_RUN_TIME = 2
"""``CPUCLOCK_SCHED``, of the whole process."""
