"""The pool: places for compiled guests' memories, reserved when the process starts.

A guest with a mapping of its own costs its launch the system calls that make the mapping, those
that lay out what the module's memory begins with, and those that unmap both. In the pool a memory
lies in a place that is there already, and in which the one before it, mostly of the same module,
has left that layout. The runtime cleans a place when its guest ends, before anybody else can have
it: the kernel drops all pages that were written, and what had grown is taken back.

Owns whether this process has a pool, and how many of its places are taken. Must not know what a
guest is, nor import the runtime.
"""

from __future__ import annotations

import logging
import mmap
from typing import Any

logger = logging.getLogger(__name__)

NUM_PLACES = 1024
"""As many programs as one tenant may have at once; who finds none has a mapping of its own."""
MAX_TABLES = 4
MAX_TABLE_ELEMENTS = 1 << 16
"""Of one instance and of each of its tables, in a place or not: tables lie outside of the memory,
8 bytes an element."""

_KEPT_BYTES = 0
"""Of a memory or table, that the runtime would keep and write over when a guest ends, instead of
having the kernel drop it: nothing was gained by that second way of cleaning."""
_MEMORY_BYTES = 4 << 30
"""The most that 32 bits address. How much of it a guest may have is its store's affair."""
_GUARD_BYTES = 32 << 20
"""Behind each memory, by the runtime's default: with both, compiled code needs no bounds checks."""
_NUM_MEMORIES = 2
"""Of one instance: its own, and one that the runtime may need for objects that it collects."""


class InstancePool:
    """``engine`` makes at most ``num_places`` instances at a time: who makes one ``take``s its
    place first. Belongs to the thread that calls guests."""

    def __init__(self, engine: Any, num_places: int) -> None:
        self.engine = engine
        self.num_free = num_places

    def take(self) -> bool:
        """False: all are taken."""
        if self.num_free == 0:
            return False
        self.num_free -= 1
        return True

    def give_back(self) -> None:
        """The instance of one has been freed."""
        self.num_free += 1


def find_pool(package: Any, config: Any, num_places: int = NUM_PLACES) -> InstancePool | None:
    """A pool of the runtime's Python ``package``; ``config`` is an engine's without one, and used
    up. ``None``: it cannot be had here, which the log says."""
    reserved_bytes = num_places * _NUM_MEMORIES * (_MEMORY_BYTES + _GUARD_BYTES)
    # tables, stacks and guards are less than a quarter of it
    if not can_reserve(reserved_bytes + reserved_bytes // 4):
        logger.warning(
            "compiled guests have mappings of their own, which makes launches slower: this process "
            "cannot reserve %d GiB of addresses for a pool (see ulimit -v)",
            reserved_bytes >> 30,
        )
        return None
    try:
        _ask_for_pool(package, config, num_places)
    except AttributeError as exc:
        logger.warning(
            "compiled guests have mappings of their own, which makes launches slower: this release "
            "of wasmtime offers no pool (%s)",
            exc,
        )
        return None
    return InstancePool(package.Engine(config), num_places)


def _ask_for_pool(package: Any, config: Any, num_places: int) -> None:
    """What the package binds and has no words for. Raises ``AttributeError`` where it binds other
    functions."""
    c = package._bindings
    wanted = {
        "total_core_instances": num_places,
        "total_memories": num_places * _NUM_MEMORIES,
        "total_gc_heaps": num_places,
        "max_memory_size": _MEMORY_BYTES,
        "linear_memory_keep_resident": _KEPT_BYTES,
        # a place stays laid out for its module, however many are free
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
        take(config.ptr(), settings)  # a copy of them
    finally:
        delete(settings)


def can_reserve(num_bytes: int) -> bool:
    """Whether the system gives this process so many addresses. Asked before the runtime does: what
    it cannot reserve ends the process."""
    try:
        mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
    except (OSError, OverflowError):
        return False
    return True
