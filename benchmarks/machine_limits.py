"""Measures the machine's physical limits, in turn with the contenders.

``python -m benchmarks.machine_limits`` prints them. ``MachineProbe`` measures in a process of its
own, so that its threads and its gibibyte of memory are not shared with a contender. It measures in
every round because memory bandwidth drifts on a shared machine; a share is of the best that any
round has found (``Limits.best_of``), because a limit is what the machine can do, not what it did
while somebody else used it. The peak of arithmetic is that of the processor's instructions, and
reading is measured by size, because what fits into a cache is read faster (``machine_peak``).
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from benchmarks.machine_peak import TYPES, peak_flops, read_buffer, read_rate
from benchmarks.report import ROOT, processor

READ_SIZES = tuple(1 << power for power in range(18, 31))
"""256 KiB to 1 GiB."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The machine's best rates. ``read``: bytes per second by size of what is read again and again.
    ``flops``: operations per second by type of the weights."""

    read: dict[int, float]
    flops: dict[str, float]

    def bytes_per_s(self, num_bytes: int) -> float:
        """Return an upper bound of the rate of reading so many bytes again and again: that of
        the largest measured size that is not larger, or the fastest for fewer bytes than were
        measured."""
        fitting = [size for size in self.read if size <= num_bytes]
        return self.read[max(fitting)] if fitting else max(self.read.values())

    @property
    def memory_bytes_per_s(self) -> float:
        """Return the rate of reading what fits into no cache."""
        return self.read[max(self.read)]

    @staticmethod
    def best_of(found: Iterable[Limits]) -> Limits:
        """Return each rate as the best of all measurements."""
        rounds = list(found)
        return Limits(
            {size: max(one.read[size] for one in rounds) for size in rounds[0].read},
            {kind: max(one.flops[kind] for one in rounds) for kind in rounds[0].flops},
        )


class MachineProbe:
    """Measures on demand, with one thread per core. A context manager."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.machine_limits", "--on-request"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self) -> Limits:
        """Measure each limit in several passes and return the best; takes about a second."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        read = {int(size): rate for size, rate in answer["read"].items()}
        return Limits(read, answer["flops"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input ends it


def measure_limits(buffer: mmap.mmap, num_threads: int) -> Limits:
    """Measure the limits in this process. ``buffer`` has the largest of ``READ_SIZES``."""
    read = {size: read_rate(buffer, size, num_threads) for size in READ_SIZES}
    flops = {kind: peak_flops(kind, num_threads) for kind in TYPES}
    flops["int8"] = max(flops["int8"], flops["f32"])  # int8 may be widened as well
    return Limits(read, flops)


def main() -> None:
    buffer = read_buffer(READ_SIZES[-1])
    num_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    for _ in sys.stdin if "--on-request" in sys.argv[1:] else ("once",):
        limits = measure_limits(buffer, num_threads)
        line = {"processor": processor(), "read": limits.read, "flops": limits.flops}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
