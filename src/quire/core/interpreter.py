"""Settings of the Python interpreter for Quire's processes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SWITCH_INTERVAL_S = 0.0005
_GC_YOUNG_OBJECTS = 100_000
"""The number of allocations before the garbage collector runs. A request or program in progress is
100 to 1000 live objects: at Python's default of 700 each burst would be scanned several times, at
more than the burst's own cost. 1000 programs launched at once are 80,000 objects; scanning half of
them took a fifth of the launch time."""


def take_short_turns() -> None:
    """Shorten the switch interval, for threads that wait for one another: Python's default of 5 ms
    is longer than a message takes."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def collect_seldom() -> None:
    """Collect garbage seldom, for a process that creates many long-lived objects at once."""
    gc.set_threshold(_GC_YOUNG_OBJECTS)


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection meanwhile: for work that leaves no cycles of objects behind, and
    whose many live objects a collection would only scan."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def settle() -> None:
    """Call when start-up is done: objects that exist now are exempt from garbage collection, which
    would otherwise pause to scan them."""
    gc.collect()
    gc.freeze()
