"""The part that all processes of a node share: the heartbeat pipes, and ending with the node.

Standard input carries the launch order, then heartbeats; its end means that the node is gone.
Standard output answers the heartbeats.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from io import RawIOBase
from typing import BinaryIO, TypeVar

import msgspec

from quire.core.parent_process import die_with_parent
from quire.node.transports.messages import RECORD_FORMAT, Pulse

EXIT_NODE_GONE = 3
CHATTY_LOGGERS = ("torch",)
"""Libraries whose records at INFO tell an operator nothing, such as the figures of a cache that
torch logs at the end of a process."""

Order = TypeVar("Order", bound=msgspec.Struct)


class LifeLine:
    """The pipes to the node. Create it at the start of the process, before anything prints."""

    def __init__(self) -> None:
        die_with_parent()
        self._heartbeats, self._answers = take_stdin(), take_stdout()

    def read_order(self, kind: type[Order]) -> Order:
        """Read the launch order; without one the process exits. From here on logs go to standard
        error."""
        line = self._heartbeats.readline()
        if not line:
            sys.exit(EXIT_NODE_GONE)
        order = msgspec.json.decode(line, type=kind)
        logging.basicConfig(level=logging.INFO, format=RECORD_FORMAT)
        for name in CHATTY_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node decides when its processes end
        return order

    def answer(self, busy_s: Callable[[], float]) -> None:
        """Answer heartbeats on a thread. ``busy_s``: how long the current work has been running."""
        heartbeats, answers = self._heartbeats, self._answers
        threading.Thread(
            target=answer_heartbeats, args=(heartbeats, answers, busy_s), daemon=True
        ).start()


def answer_heartbeats(lifeline: RawIOBase, answers: BinaryIO, busy_s: Callable[[], float]) -> None:
    """Answer each line with a ``Pulse``. When the lines end, or an answer cannot be written, the
    node is gone, and this process exits."""
    try:
        while lifeline.readline():
            answers.write(msgspec.json.encode(Pulse(busy_s=busy_s())) + b"\n")
            answers.flush()
    finally:
        os._exit(
            EXIT_NODE_GONE
        )  # no clean-up: nobody is left to answer, and the system frees the memory


def take_stdin() -> RawIOBase:
    """Standard input without a buffer: the lock of a buffer would be held by the reading thread at
    exit."""
    return open(0, "rb", buffering=0, closefd=False)


def take_stdout() -> BinaryIO:
    """Reserve standard output for heartbeats; what a library prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers
