"""The peak rate of the processor's multiply-add instructions, by type of the weights.

``machine_peak.cpp`` is compiled for this machine on first use, and kept in ``DEFAULT_CACHE``.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path

from benchmarks.peers.catalog import DEFAULT_CACHE

SOURCE = Path(__file__).with_suffix(".cpp")
TYPES = ("f32", "bf16", "int8")
_FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-std=c++17")
_NUM_STEPS = 1_000_000
"""Steps of a dozen instructions each, which take some milliseconds."""


def peak_flops(weights: str, num_threads: int, num_passes: int = 7) -> float:
    """Operations per second (two for each multiply-add), an upper bound for products with such
    ``weights``: the best of several passes. bf16 counts as float32 where the processor must widen
    it."""
    native = _native()
    kind = TYPES.index(weights)
    return max(float(native.quire_peak(kind, num_threads, _NUM_STEPS)) for _ in range(num_passes))


@cache
def _native() -> ctypes.CDLL:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    name = hashlib.sha256(SOURCE.read_bytes() + flags.encode()).hexdigest()[:16]
    path = DEFAULT_CACHE / f"machine_peak_{name}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}")
        command = [os.environ.get("CXX", "c++"), *_FLAGS, "-shared", "-fPIC", "-pthread"]
        command += [str(SOURCE), "-o", str(made)]
        subprocess.run(command, check=True)
        made.replace(path)
    native = ctypes.CDLL(str(path))
    native.quire_peak.restype = ctypes.c_double
    native.quire_peak.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64)
    return native
