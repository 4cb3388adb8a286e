"""The machine's physical limits, measured in turn with the contenders.

``python -m benchmarks.machine_limits`` prints them. ``MachineProbe`` measures in a process of its
own, so that its threads and its gibibyte of memory are not shared with a contender. It measures in
every round because memory bandwidth drifts on a shared machine. The peak of arithmetic is that of
the processor's instructions (``machine_peak``), whatever a product reaches.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Self

from benchmarks.checkpoints import Limits
from benchmarks.machine_peak import peak_flops
from benchmarks.report import ROOT

_READ_BYTES = 1 << 30
_NUM_PASSES = 7


class MachineProbe:
    """Measures on demand. A context manager."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.machine_limits", "--on-request"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self) -> Limits:
        """The best of several passes each, on torch's default number of threads; takes half a
        second."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Limits(**json.loads(self._process.stdout.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input ends it


def _measurement() -> Callable[[], Limits]:
    import torch

    words = torch.zeros(_READ_BYTES // 4)
    words.add_(1)  # touches every page

    def measure() -> Limits:
        read_s = _best_s(lambda: words.sum())
        flops = peak_flops("bf16", torch.get_num_threads(), _NUM_PASSES)
        return Limits(_READ_BYTES / read_s, flops)

    return measure


def _best_s(run: Callable[[], object]) -> float:
    times = []
    for _ in range(_NUM_PASSES):
        started_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - started_s)
    return min(times)


def main() -> None:
    measure = _measurement()
    for _ in sys.stdin if "--on-request" in sys.argv[1:] else ("once",):
        limits = measure()
        line = {"bytes_per_s": limits.bytes_per_s, "flops": limits.flops}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
