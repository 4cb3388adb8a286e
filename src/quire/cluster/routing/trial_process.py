"""The process in which a strategy is tried: its limits, and the two lines that it writes.

Owns the messages of this process. What a strategy prints is dropped.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from quire.cluster.routing.strategy import StrategySource, load
from quire.core.errors import InvalidArgument

READY = b"ready\n"


class Limits(msgspec.Struct, frozen=True):
    """Limits of the process. ``memory_bytes``: beyond what the process has before it loads the
    strategy."""

    processor_s: float = 5.0
    memory_bytes: int = 1 << 30


class TrialRequest(msgspec.Struct, frozen=True):
    """A ``StrategySource`` that has a text, and the limits of its trial."""

    name: str
    text: str
    path: str | None
    options: dict[str, Any]
    limits: Limits


class TrialOutcome(msgspec.Struct, frozen=True):
    """The outcome of a trial. ``refusal``: why the strategy is refused; None if it has passed."""

    refusal: str | None


def main() -> None:
    """Try one strategy. Reads a line of JSON (``TrialRequest``) from standard input; writes
    ``READY`` to standard output when the time begins to count, then a line of JSON
    (``TrialOutcome``)."""
    asked = msgspec.json.decode(sys.stdin.buffer.readline(), type=TrialRequest)
    answers = os.fdopen(os.dup(1), "wb")
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 0)
    os.dup2(silence, 1)
    answers.write(READY)
    answers.flush()
    _limit(asked.limits)
    path = None if asked.path is None else Path(asked.path)
    source = StrategySource(asked.name, asked.text, path, asked.options)
    try:
        asyncio.run(load(source, asked.limits.processor_s * 1000))  # the parent limits the time
        outcome = TrialOutcome(None)
    except InvalidArgument as exc:
        outcome = TrialOutcome(exc.message)
    answers.write(msgspec.json.encode(outcome) + b"\n")
    answers.flush()
    os._exit(0)  # threads that the strategy has started must not keep the process alive


def _limit(limits: Limits) -> None:
    with open("/proc/self/status", encoding="ascii") as status:
        sizes = dict(line.split(":", 1) for line in status)
    most = (int(sizes["VmData"].split()[0]) << 10) + limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, limits.processor_s)
