"""The machine's physical limits, measured in the run that they are compared with.

``python -m benchmarks.machine_limits`` prints them; the scripts run it in a process of its own, so
that its threads do not stay.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.checkpoints import Limits
from benchmarks.report import ROOT

_READ_BYTES = 1 << 30
_MATRIX = 2048
_NUM_PASSES = 7


def measure_limits() -> Limits:
    """Best of several passes, on as many threads as torch chooses."""
    import torch

    words = torch.zeros(_READ_BYTES // 4)
    words.add_(1)  # every page is there
    a = torch.randn(_MATRIX, _MATRIX).to(torch.bfloat16)
    b = torch.randn(_MATRIX, _MATRIX).to(torch.bfloat16)
    read_s = _best_s(lambda: words.sum())
    multiply_s = _best_s(lambda: a @ b)
    return Limits(_READ_BYTES / read_s, 2 * _MATRIX**3 / multiply_s)


def _best_s(run: Callable[[], object]) -> float:
    times = []
    for _ in range(_NUM_PASSES):
        started_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - started_s)
    return min(times)


def limits_of_this_machine() -> Limits:
    """``measure_limits`` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.machine_limits"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return Limits(**json.loads(done.stdout))


if __name__ == "__main__":
    limits = measure_limits()
    print(json.dumps({"bytes_per_s": limits.bytes_per_s, "flops": limits.flops}))


__all__ = ["limits_of_this_machine", "measure_limits"]
