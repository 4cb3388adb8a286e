"""The pool: slots for compiled guests' memories, reserved when the process starts.

Without the pool each launch needs system calls to map the guest's memory, to write its initial
contents, and to unmap it. With the pool the memory is a slot that is already mapped and, if its
last guest was of the same module, already initialised. When a guest ends, the runtime cleans its
slot before it is reused: the kernel drops all written pages, and grown memory shrinks back.

Owns the decision whether this process has a pool, and the number of used slots. Must not know what
a guest is, nor import the runtime.
"""

from __future__ import annotations

import logging
import mmap
from typing import Any

logger = logging.getLogger(__name__)

NUM_PLACES = 1024
"""The largest number of concurrent programs of one tenant; further guests are mapped without the
pool."""
MAX_TABLES = 4
MAX_TABLE_ELEMENTS = 1 << 16
"""The limit for each table of an instance, in the pool or not: tables are outside of the memory,
with 8 bytes per element."""

_KEPT_BYTES = 0
"""Bytes of a memory or table that the runtime would keep and overwrite when a guest ends, instead
of having the kernel drop them. Keeping any gained nothing."""
_MEMORY_BYTES = 4 << 30
"""The most that 32 bits can address. The store limits how much of it a guest may use."""
_GUARD_BYTES = 32 << 20
"""The runtime's default guard after each memory: with it, compiled code needs no bounds checks."""
_NUM_MEMORIES = 2
"""Memories of one instance: its own, and one that the runtime may need for garbage-collected
objects."""


class InstancePool:
    """``engine`` creates at most ``num_places`` instances at a time: call ``take`` before creating
    one. Belongs to the thread that calls guests."""

    def __init__(self, engine: Any, num_places: int) -> None:
        self.engine = engine
        self.num_free = num_places

    def take(self) -> bool:
        """Use a slot; return False if all are used."""
        if self.num_free == 0:
            return False
        self.num_free -= 1
        return True

    def give_back(self) -> None:
        """Free a slot: its instance was freed."""
        self.num_free += 1


def find_pool(package: Any, config: Any, num_places: int = NUM_PLACES) -> InstancePool | None:
    """A pool of the runtime's Python ``package``. ``config``: the configuration of an engine
    without a pool, which is consumed. Returns ``None`` if a pool is not possible here, and logs the
    reason."""
    reserved_bytes = num_places * _NUM_MEMORIES * (_MEMORY_BYTES + _GUARD_BYTES)
    # tables, stacks and guards are less than a quarter of it
    if not can_reserve(reserved_bytes + reserved_bytes // 4):
        logger.warning(
            "compiled guests run without an instance pool, which makes launches slower: this "
            "process cannot reserve %d GiB of addresses for it (see ulimit -v)",
            reserved_bytes >> 30,
        )
        return None
    try:
        _ask_for_pool(package, config, num_places)
    except AttributeError as exc:
        logger.warning(
            "compiled guests run without an instance pool, which makes launches slower: this "
            "release of wasmtime offers none (%s)",
            exc,
        )
        return None
    return InstancePool(package.Engine(config), num_places)


def _ask_for_pool(package: Any, config: Any, num_places: int) -> None:
    """Configure the pool through C functions that the package binds but does not wrap. Raises
    ``AttributeError`` if it binds others."""
    c = package._bindings
    wanted = {
        "total_core_instances": num_places,
        "total_memories": num_places * _NUM_MEMORIES,
        "total_gc_heaps": num_places,
        "max_memory_size": _MEMORY_BYTES,
        "linear_memory_keep_resident": _KEPT_BYTES,
        # a slot stays initialised for its module, however many are free
        "max_unused_warm_slots": num_places * _NUM_MEMORIES,
        "total_tables": num_places * MAX_TABLES,
        "max_tables_per_module": MAX_TABLES,
        "table_elements": MAX_TABLE_ELEMENTS,
        "table_keep_resident": _KEPT_BYTES,
    }
    setters = [
        (getattr(c, f"_wasmtime_pooling_allocation_config_{name}_set"), value)
        for name, value in wanted.items()
    ]
    take, delete = (
        c._wasmtime_pooling_allocation_strategy_set,
        c._wasmtime_pooling_allocation_config_delete,
    )
    settings = c._wasmtime_pooling_allocation_config_new()
    try:
        for setter, value in setters:
            setter(settings, value)
        take(config.ptr(), settings)  # copies the settings
    finally:
        delete(settings)


def can_reserve(num_bytes: int) -> bool:
    """Whether the system can reserve this many addresses. Checked first, because the runtime aborts
    the process if it fails."""
    try:
        mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
    except (OSError, OverflowError):
        return False
    return True
