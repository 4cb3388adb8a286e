"""Reads the traces of one program or session, and of those below it, from the book.

Belongs to the edge's loop. Owns which programs a public name refers to, and what is derived from
their records: waits between calls, and the messages that carried them.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quire.control import Controller
from quire.core.errors import UnknownHandle
from quire.core.ids import EngineId, ProgramId, TenantId
from quire.core.tracing import CallRecord, MessageRecord
from quire.node.control.control_thread import ControlThread
from quire.node.programs.programs import ProgramTable
from quire.node.sessions.sessions import SessionTable
from quire.node.tracing.book import ProgramTrace, TraceBook
from quire.node.tracing.unix_time import UnixTime

MAX_PROGRAMS = 256
"""The most programs in one answer."""

MIN_WAIT_S = 0.001
"""A shorter time between two calls counts as work of the program, not as a wait."""


@dataclass(frozen=True, slots=True)
class TracedProgram:
    """One program with its trace. ``id``: its public id, if it still has one. ``under_way``: calls
    that have not ended."""

    id: str | None
    trace: ProgramTrace
    under_way: tuple[CallRecord, ...]


@dataclass(frozen=True, slots=True)
class NodeTrace:
    """``programs``: first the incarnations of the requested program, in the order of their starts;
    then the programs below it. ``messages``: those that carried their calls, as far as they are
    kept. ``unix_s``: the present Unix time. ``unix_offset_s`` is added to a record's time to give
    Unix time."""

    programs: Sequence[TracedProgram]
    messages: Sequence[MessageRecord]
    unix_s: float
    unix_offset_s: float


class TraceReader:
    """Reads the book; ``programs`` and ``sessions`` resolve names."""

    def __init__(
        self,
        control: ControlThread,
        book: TraceBook,
        programs: ProgramTable,
        sessions: SessionTable,
        time: UnixTime,
    ) -> None:
        self._control = control
        self._book = book
        self._programs = programs
        self._sessions = sessions
        self._time = time

    async def read(self, name: str, tenant: TenantId, *, family: bool = False) -> NodeTrace:
        """Trace the program or session that ``name`` refers to; with ``family`` those below it too.

        Raises:
            UnknownHandle: the tenant has no such program or session, or it is forgotten.
        """
        roots = self._roots(name, tenant)
        found = self._control.call(lambda controller: self._look(controller, roots, family))
        traced, messages = found
        if not traced:
            raise _unknown(name)
        named = [self._named(one, name, roots) for one in traced]
        calls = [call for one in traced for call in (*one.trace.calls, *one.under_way)]
        return NodeTrace(
            programs=named,
            messages=await asyncio.to_thread(carriers, calls, messages),
            unix_s=self._time.now_s(),
            unix_offset_s=self._time.offset_s(),
        )

    def _look(
        self, controller: Controller, roots: Sequence[ProgramId], family: bool
    ) -> tuple[list[TracedProgram], Mapping[EngineId, Sequence[MessageRecord]]]:
        """Read the book; runs on the control thread."""
        wanted = self._book.family(roots, MAX_PROGRAMS) if family else roots
        traces = [self._book.read(program) for program in wanted]
        traced = [
            TracedProgram(None, trace, controller.calls(trace.started.program))
            for trace in traces
            if trace is not None
        ]
        return traced, self._book.messages()

    def _named(self, one: TracedProgram, name: str, roots: Sequence[ProgramId]) -> TracedProgram:
        program = one.trace.started.program
        known = (
            self._programs.public_id(program)
            or self._sessions.public_id(program)
            or self._sessions.ended.public_id(program)
        )
        if known is None and program in roots:  # an earlier incarnation
            known = name
        return TracedProgram(known, one.trace, one.under_way)

    def _roots(self, name: str, tenant: TenantId) -> Sequence[ProgramId]:
        session = self._sessions.program_of(tenant, name)
        if session is not None:
            return [session]
        try:
            return self._programs.find(name, tenant).incarnations
        except UnknownHandle:
            ended = self._sessions.ended.find(tenant, name)
            if ended is None:
                raise _unknown(name) from None
            return [ended]


def _unknown(name: str) -> UnknownHandle:
    return UnknownHandle(
        f"no program or session {name[:256]!r}: it was never launched by this tenant, has done "
        "nothing yet, or ended long ago"
    )


def waits(traced: TracedProgram) -> list[tuple[float, float | None]]:
    """The times (start, end) in which the program ran and had no call: between two calls, or since
    the last one. The end of a wait that goes on is None."""
    calls = [*traced.trace.calls, *traced.under_way]
    found: list[tuple[float, float | None]] = [
        (call.idle_since_s, call.arrival_s)
        for call in calls
        if call.idle_since_s is not None and call.arrival_s - call.idle_since_s >= MIN_WAIT_S
    ]
    found.sort()
    ends = [call.end_s for call in traced.trace.calls if call.end_s is not None]
    if ends and not traced.under_way and traced.trace.end_s is None:
        found.append((max(ends), None))
    return found


def carriers(
    calls: Iterable[CallRecord], messages: Mapping[EngineId, Sequence[MessageRecord]]
) -> list[MessageRecord]:
    """The messages that carried one of ``calls``, in the order of their ends."""
    spans: dict[EngineId, list[tuple[int, int]]] = {}
    for call in calls:
        if call.engine is not None and call.messages:
            spans.setdefault(call.engine, []).extend(call.messages)
    found = []
    for engine, runs in spans.items():
        joined = _joined(runs)
        starts = [first for first, _ in joined]
        for message in messages.get(engine, ()):
            index = bisect_right(starts, message.number) - 1
            if index >= 0 and message.number <= joined[index][1]:
                found.append(message)
    return sorted(found, key=lambda message: (message.end_s, message.engine, message.number))


def _joined(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(runs):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined
