"""Reads event logs of nodes: whether they replay equal and, for simulations, the times of messages
and the programs that were served. A long log prints how far it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

from quire.cli.console import counted
from quire.cli.progress_lines import ProgressLines
from quire.core.actions import Action
from quire.core.errors import InvalidArgument
from quire.core.events import Event
from quire.node.control.replaying import ReplayReport, replay
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
    report = _watch(log, programs.observe)
    if report.num_cut_bytes:
        raise InvalidArgument(
            f"the log {log} is cut off: its last {counted(report.num_cut_bytes, 'byte')} are a "
            "message that was not written to its end; record until the node has stopped"
        )
    return programs.load()


def replayed(
    log: Path, observe: Callable[[Event, Sequence[Action]], None] | None = None
) -> ReplayReport:
    """Replay ``log`` as ``quire.node.control.replaying.replay`` does; a line on stderr says now and
    then how far it is."""
    lines = ProgressLines(str(log))
    num_events, began_s = 0, inf

    def watch(event: Event, actions: Sequence[Action]) -> None:
        nonlocal num_events, began_s
        num_events += 1
        began_s = min(began_s, event.time_s)
        of_log_s = event.time_s - began_s
        lines.tell(lambda: f"{counted(num_events, 'event')}, {of_log_s:.0f} s of the log")
        if observe is not None:
            observe(event, actions)

    return replay(log, watch)


def _watch(log: Path, observe: Callable[[Event, Sequence[Action]], None]) -> ReplayReport:
    report = replayed(log, observe)
    if not report.equal:
        raise InvalidArgument(
            f"the log {log} of quire {report.recorded_by} does not replay equal with "
            f"{report.replayed_by}: what happened in it is not known, so record it again"
        )
    return report
