"""What a process of ours asks of its Python interpreter."""

from __future__ import annotations

import gc
import sys

_SWITCH_INTERVAL_S = 0.0005
_GC_YOUNG_OBJECTS = 100_000
"""So many objects are made before the collector looks at them. A request at work, or a program, is
a hundred to a thousand that all live: with Python's 700 a burst would be looked through again and
again, at more than the burst's own cost. A thousand programs that are launched at once are 80,000,
and looking through half of them took a fifth of the time of their launch."""


def take_short_turns() -> None:
    """For threads that wait for one another: none waits Python's 5 ms for its turn, which is longer
    than a message."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def collect_seldom() -> None:
    """For a process that makes many objects at once which live."""
    gc.set_threshold(_GC_YOUNG_OBJECTS)


def settle() -> None:
    """All is built: what was imported and built stays, and nobody waits while it is looked through
    for garbage."""
    gc.collect()
    gc.freeze()
