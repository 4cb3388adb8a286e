"""The traces of a recorded run: replays the event log through a controller with a listener.

Owns how a program of a log is named. Needs neither engines nor clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quire.core.errors import UnknownHandle
from quire.core.events import ProgramStarted
from quire.core.ids import ProgramId
from quire.node.control.recorder import LogEntry, LogHeader, read_log
from quire.node.control.replaying import Divergence, Replay
from quire.node.tracing.book import TraceBook, TraceLimits
from quire.node.tracing.reading import NodeTrace, TracedProgram, carriers

_EVERYTHING = TraceLimits(*[1 << 62] * 7)
_NAMED = 10


@dataclass(frozen=True, slots=True)
class LogTrace:
    """The trace of a log. ``divergence``: where this release decides otherwise than the recorded
    one; the trace ends there."""

    trace: NodeTrace
    divergence: Divergence | None


def trace_log(path: Path, name: str | None = None, *, family: bool = True) -> LogTrace:
    """Trace the programs that ``name`` refers to (a number, a name or a client's id), with
    ``family`` those below them too; all programs without a name. Times are those of the log.

    Raises:
        InvalidArgument: not an event log, or it cannot be read.
        ProtocolMismatch: a log of another protocol version.
        UnknownHandle: the log has no such program.
    """
    messages = read_log(path)
    header = next(messages)
    assert isinstance(header, LogHeader)
    book = TraceBook(_EVERYTHING)
    run = Replay(header, book)
    started: list[ProgramStarted] = []
    divergence, end_s = None, 0.0
    for entry in messages:
        assert isinstance(entry, LogEntry)
        if isinstance(entry.event, ProgramStarted):
            started.append(entry.event)
        end_s = entry.event.time_s
        divergence = run.step(entry)
        if divergence is not None:
            break
    roots = _roots(started, name)
    wanted = book.family(roots, len(started)) if family else roots
    traced = [
        TracedProgram(None, trace, run.controller.calls(trace.started.program))
        for trace in map(book.read, wanted)
        if trace is not None
    ]
    calls = [call for one in traced for call in (*one.trace.calls, *one.under_way)]
    return LogTrace(NodeTrace(traced, carriers(calls, book.messages()), end_s, 0.0), divergence)


def _roots(started: list[ProgramStarted], name: str | None) -> list[ProgramId]:
    """The programs that ``name`` refers to. Raises ``UnknownHandle`` if there is none."""
    found = [
        one.program
        for one in started
        if name is None or name in (str(one.program), one.name, one.client_id)
    ]
    if not found:
        known = ", ".join(f"{one.program} ({one.name})" for one in started[:_NAMED])
        more = f" and {len(started) - _NAMED} more" if len(started) > _NAMED else ""
        raise UnknownHandle(f"no program {name!r} in this log, which has {known or 'none'}{more}")
    return found
