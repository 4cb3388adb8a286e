"""What every process that a node starts has in common: its life line, and its end with the node.

Standard input carries the launch order, then heartbeats, and by its end tells that the node is
gone; standard output answers the heartbeats.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from io import RawIOBase
from typing import BinaryIO

import msgspec

from quire.node.transports.messages import Pulse

EXIT_NODE_GONE = 3

_PR_SET_PDEATHSIG = 1


def answer_heartbeats(lifeline: RawIOBase, answers: BinaryIO, busy_s: Callable[[], float]) -> None:
    """One ``Pulse`` per line; the end of the lines is the end of the node, and so of us, and so is
    an answer that nobody takes any more."""
    try:
        while lifeline.readline():
            answers.write(msgspec.json.encode(Pulse(busy_s=busy_s())) + b"\n")
            answers.flush()
    finally:
        os._exit(EXIT_NODE_GONE)  # no clean-up: nobody is left to answer, and memory goes with us


def die_with_parent() -> None:
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


__all__ = ["EXIT_NODE_GONE", "answer_heartbeats", "die_with_parent", "take_stdin", "take_stdout"]
