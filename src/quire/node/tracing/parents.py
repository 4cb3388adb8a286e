"""The clients' spans that are parents of programs and calls: ``traceparent`` of W3C Trace Context.

The edge notes them before control receives the program or call; the thread that makes spans reads
them. Owns the parsing, and how long they are remembered. An invalid value is ignored, as the
specification demands; the client's request is served.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass

from quire.core.ids import ProgramId

MAX_REMEMBERED = 16_384

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class SpanContext:
    """A span by its ids. ``is_sampled``: its trace is recorded."""

    trace_id: int
    span_id: int
    is_sampled: bool = True


def parse(traceparent: str) -> SpanContext | None:
    """The span that ``traceparent`` names; None for an invalid value. Of a value of a later version
    the parts that this version has are read."""
    found = _FORM.fullmatch(traceparent.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    return SpanContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1))


class TraceParents:
    """The parents of running calls, and those that were noted last of programs and of calls that
    have ended: these are read soon, when control tells of them. For any thread."""

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max_remembered = max_remembered
        self._running: dict[tuple[ProgramId, int], SpanContext] = {}
        self._brief: OrderedDict[tuple[ProgramId, int | None], SpanContext] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, program: ProgramId, traceparent: str | None, issuer: int | None = None) -> None:
        """Note the parent of ``program``, or of the calls that this issuer of it will make until
        ``ended``."""
        context = None if traceparent is None else parse(traceparent)
        if context is None:
            return
        with self._lock:
            if issuer is None:
                self._remember(program, None, context)
            else:
                self._running[program, issuer] = context

    def ended(self, program: ProgramId, issuer: int) -> None:
        """Note that this issuer makes no further call. Idempotent."""
        with self._lock:
            context = self._running.pop((program, issuer), None)
            if context is not None:
                self._remember(program, issuer, context)

    def of(self, program: ProgramId, issuer: int | None = None) -> SpanContext | None:
        with self._lock:
            running = None if issuer is None else self._running.get((program, issuer))
            return running or self._brief.get((program, issuer))

    def _remember(self, program: ProgramId, issuer: int | None, context: SpanContext) -> None:
        self._brief[program, issuer] = context
        if len(self._brief) > self._max_remembered:
            self._brief.popitem(last=False)
