"""The part of WASI (preview 1) that compiled guests have: standard output, a clock, random bytes.

Each function gets the guest's memory and checks every address against its current size; an invalid
address returns WASI's error number.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable

WASI_MODULE = "wasi_snapshot_preview1"

OK, BAD_FILE, FAULT, INVALID = 0, 8, 21, 28
_MAX_BYTES = 1 << 16
_MAX_VECTORS = 256
_MASK = 0xFFFFFFFF

Log = Callable[[str, str], None]
WasiFunction = Callable[..., int]


def _fits(memory: memoryview, address: int, length: int) -> bool:
    return address + length <= len(memory)


def _fd_write(memory: memoryview, log: Log, fd: int, vectors: int, count: int, written: int) -> int:
    if fd not in (1, 2):
        return BAD_FILE
    vectors, count, written = vectors & _MASK, count & _MASK, written & _MASK
    if count > _MAX_VECTORS:
        return INVALID
    if not _fits(memory, vectors, 8 * count) or not _fits(memory, written, 4):
        return FAULT
    parts: list[bytes] = []
    for address, length in struct.iter_unpack("<II", memory[vectors : vectors + 8 * count]):
        if length > _MAX_BYTES:
            return INVALID
        if not _fits(memory, address, length):
            return FAULT
        parts.append(bytes(memory[address : address + length]))
    content = b"".join(parts)
    log("info" if fd == 1 else "error", content.decode("utf-8", "replace").rstrip("\n"))
    struct.pack_into("<I", memory, written, len(content))
    return OK


def _random_get(memory: memoryview, log: Log, address: int, length: int) -> int:
    address, length = address & _MASK, length & _MASK
    if length > _MAX_BYTES:
        return INVALID
    if not _fits(memory, address, length):
        return FAULT
    memory[address : address + length] = os.urandom(length)
    return OK


def _clock_time_get(memory: memoryview, log: Log, clock: int, precision: int, address: int) -> int:
    clocks = {0: time.time_ns, 1: time.monotonic_ns}
    address &= _MASK
    if clock not in clocks:
        return INVALID
    if not _fits(memory, address, 8):
        return FAULT
    struct.pack_into("<Q", memory, address, clocks[clock]())
    return OK


def _nothing_sizes(memory: memoryview, log: Log, count: int, size: int) -> int:
    """The sizes of arguments and environment, which are empty (arguments are passed through the
    guest ABI)."""
    count, size = count & _MASK, size & _MASK
    if not _fits(memory, count, 4) or not _fits(memory, size, 4):
        return FAULT
    struct.pack_into("<I", memory, count, 0)
    struct.pack_into("<I", memory, size, 0)
    return OK


def _nothing(memory: memoryview, log: Log, *_: int) -> int:
    return OK


def _no_file(memory: memoryview, log: Log, *_: int) -> int:
    return BAD_FILE


WASI_FUNCTIONS: dict[str, WasiFunction] = {
    "fd_write": _fd_write,
    "random_get": _random_get,
    "clock_time_get": _clock_time_get,
    "args_sizes_get": _nothing_sizes,
    "environ_sizes_get": _nothing_sizes,
    "args_get": _nothing,
    "environ_get": _nothing,
    "fd_close": _no_file,
    "fd_fdstat_get": _no_file,
    "fd_prestat_get": _no_file,
    "fd_seek": _no_file,
}
