"""What every process that a node starts has in common: its life line, and its end with the node.

Standard input carries the launch order, then heartbeats, and by its end tells that the node is
gone; standard output answers the heartbeats.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from io import RawIOBase
from typing import BinaryIO, TypeVar

import msgspec

from quire.node.transports.messages import RECORD_FORMAT, Pulse

EXIT_NODE_GONE = 3

Order = TypeVar("Order", bound=msgspec.Struct)

_PR_SET_PDEATHSIG = 1


class LifeLine:
    """The pipes to the node, from the start of the process: make one before anything prints."""

    def __init__(self) -> None:
        _die_with_parent()
        self._heartbeats, self._answers = take_stdin(), take_stdout()

    def read_order(self, kind: type[Order]) -> Order:
        """The launch order; without one the process ends. Logs go to standard error from here."""
        line = self._heartbeats.readline()
        if not line:
            sys.exit(EXIT_NODE_GONE)
        order = msgspec.json.decode(line, type=kind)
        logging.basicConfig(level=logging.INFO, format=RECORD_FORMAT)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node decides when its processes end
        return order

    def answer(self, busy_s: Callable[[], float]) -> None:
        """Answer heartbeats on a thread. ``busy_s``: how long the work at hand has been running."""
        heartbeats, answers = self._heartbeats, self._answers
        threading.Thread(
            target=answer_heartbeats, args=(heartbeats, answers, busy_s), daemon=True
        ).start()


def answer_heartbeats(lifeline: RawIOBase, answers: BinaryIO, busy_s: Callable[[], float]) -> None:
    """One ``Pulse`` per line; the end of the lines is the end of the node, and so of us, and so is
    an answer that nobody takes any more."""
    try:
        while lifeline.readline():
            answers.write(msgspec.json.encode(Pulse(busy_s=busy_s())) + b"\n")
            answers.flush()
    finally:
        os._exit(EXIT_NODE_GONE)  # no clean-up: nobody is left to answer, and memory goes with us


def _die_with_parent() -> None:
    """Linux: be killed when the node dies, even while stuck in native code. Elsewhere the end of
    standard input does it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def take_stdin() -> RawIOBase:
    """Standard input without a buffer, whose lock a thread that reads would hold at exit."""
    return open(0, "rb", buffering=0, closefd=False)


def take_stdout() -> BinaryIO:
    """Keep standard output for heartbeats; what a library prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers
