"""Reads event logs of nodes for simulations: the times of messages, and the programs that were
served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from quire.core.actions import Action
from quire.core.errors import InvalidArgument
from quire.core.events import Event
from quire.node.replaying import replay
from quire.simulation.message_times import MessageTimes
from quire.simulation.workloads.recorded import RecordedLoad, RecordedPrograms


def read_times(log: Path) -> MessageTimes:
    """Return the times of the messages of an event log.

    Raises:
        InvalidArgument: it is no log, has no messages, or another release decided otherwise.
    """
    times = MessageTimes()
    _watch(log, times.observe)
    if times.info is None:
        raise InvalidArgument(f"in the log {log} no engine came up: it has no messages")
    return times


def read_load(log: Path) -> RecordedLoad:
    """Return the programs of an event log.

    Raises:
        InvalidArgument: it is no log, is cut off, has no calls that a simulation could play, or
            another release decided otherwise.
    """
    programs = RecordedPrograms()
    _watch(log, programs.observe)
    return programs.load()


def _watch(log: Path, observe: Callable[[Event, Sequence[Action]], None]) -> None:
    report = replay(log, observe)
    if not report.equal:
        raise InvalidArgument(
            f"the log {log} of quire {report.recorded_by} does not replay equal with "
            f"{report.replayed_by}: what happened in it is not known, so record it again"
        )
