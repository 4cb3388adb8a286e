"""Reads the keys of a terminal one by one and without echo, and restores the terminal afterwards.

Owns the terminal's mode while it is open. Must not know what a key means.
"""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Self

_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)
_SAME = {
    "\n": "\r",
    "\x1bOA": "\x1b[A",
    "\x1bOB": "\x1b[B",
    "\x1bOH": "\x1b[H",
    "\x1b[1~": "\x1b[H",
    "\x1bOF": "\x1b[F",
    "\x1b[4~": "\x1b[F",
}


def keys_of(text: str) -> list[str]:
    """Return the keys in what a terminal has sent; an arrow is one key, in one spelling."""
    return [_SAME.get(key, key) for key in _KEY.findall(text)]


class TerminalKeys:
    """A context manager over the terminal at ``descriptor``. Ctrl-C still interrupts."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = sys.stdin.fileno() if descriptor is None else descriptor

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def read(self, timeout_s: float) -> list[str] | None:
        """Return the keys that were pressed, as soon as there are some; none after ``timeout_s``.
        None if the terminal is gone."""
        ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if not ready:
            return []
        sent = os.read(self._descriptor, 1024)
        return keys_of(sent.decode(errors="replace")) if sent else None
