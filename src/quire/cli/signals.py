"""SIGTERM, and SIGHUP of a closed terminal, end a command as Ctrl-C does.

By default they end Python at once: a terminal in another mode stays so, temporary directories and
processes are left. Commands that serve have handlers of their own for SIGTERM.
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
    """While entered, both signals are one Ctrl-C. What ignores them (``nohup``) goes on ignoring
    them. Elsewhere than on the main thread, where Python takes no handlers, nothing changes."""
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
    # a shell lets the commands that it starts with & ignore SIGINT
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL):
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
