"""Event logs of nodes, read for simulations: what messages took, and which programs were served."""

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
    """The messages of an event log.

    Raises:
        InvalidArgument: not a log, of another release that decided otherwise, or without messages.
    """
    times = MessageTimes()
    _watch(log, times.observe)
    if times.info is None:
        raise InvalidArgument(f"in the log {log} no engine came up: it has no messages")
    return times


def read_load(log: Path) -> RecordedLoad:
    """The programs of an event log.

    Raises:
        InvalidArgument: not a log, of another release that decided otherwise, cut off, or without
            calls that a simulation could play.
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
