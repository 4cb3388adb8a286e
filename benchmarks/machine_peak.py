"""Measures the peak rates of this machine: multiply-add instructions by type of the weights, and
reading.

``machine_peak.cpp`` is compiled for this machine on first use, and kept in ``DEFAULT_CACHE``.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import subprocess
from functools import cache
from pathlib import Path

from benchmarks.peers.catalog import DEFAULT_CACHE
from benchmarks.report import processor_flags

SOURCE = Path(__file__).with_suffix(".cpp")
TYPES = ("f32", "bf16", "int8")
_FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-std=c++17")
_NUM_STEPS = 100_000
"""Steps of a window, of a dozen instructions each: less than a millisecond."""
_NUM_WINDOWS = 64


def peak_flops(weights: str, num_threads: int) -> float:
    """Return the operations per second (two for each multiply-add), an upper bound for products
    with such ``weights``: the best of many short windows. bf16 counts as float32 where the
    processor must widen it."""
    native = _native()
    return float(native.quire_peak(TYPES.index(weights), num_threads, _NUM_WINDOWS, _NUM_STEPS))


def read_rate(buffer: mmap.mmap, num_bytes: int, num_threads: int) -> float:
    """Return the bytes per second when ``num_threads`` together read the first ``num_bytes`` of
    ``buffer`` again and again: the best of many short windows. No thread reads less than a page."""
    num_threads = min(num_threads, num_bytes // mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    return float(_native().quire_read(address, num_bytes, num_threads, _NUM_WINDOWS))


def read_buffer(num_bytes: int) -> mmap.mmap:
    """Return memory whose pages are all there, in large ones where the system has them, as weights
    lie."""
    # private, because shared memory has huge pages only where the system is configured for it
    buffer = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    chunk = b"\1" * (1 << 20)
    for _ in range(num_bytes >> 20):
        buffer.write(chunk)
    return buffer


@cache
def _native() -> ctypes.CDLL:
    flags = " ".join(sorted(processor_flags()))
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
    native.quire_peak.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    native.quire_read.restype = ctypes.c_double
    native.quire_read.argtypes = (
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int,
        ctypes.c_int64,
    )
    return native
