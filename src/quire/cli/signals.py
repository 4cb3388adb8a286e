"""Lets SIGTERM, and SIGHUP of a closed terminal, end a command as Ctrl-C does.

By default they end Python at once: the terminal stays in another mode, and temporary directories
and processes are left behind. Commands that serve have handlers of their own for SIGTERM.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Treat both signals as one Ctrl-C until the context is left. If they are ignored (``nohup``),
    they stay so. On other threads than the main one, where Python has no handlers, nothing
    changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [one for one in _ENDING if signal.getsignal(one) is signal.SIG_DFL]
    for one in taken:
        signal.signal(one, _interrupt)
    try:
        yield
    finally:
        for one in taken:
            signal.signal(one, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # commands that a shell starts with & ignore SIGINT
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL):
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
