"""Ends a process together with the one that has started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Let the kernel, on Linux, kill this process when the thread that started it ends, and so when
    its process dies, even while this one is stuck in native code. Elsewhere nothing changes.

    ``parent``: the process id of the parent; this process ends at once if that has died already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(0)
