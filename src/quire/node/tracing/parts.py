"""The parts of a node that trace its programs, built and connected."""

from __future__ import annotations

import secrets

from quire.core.interfaces import ProgramClock
from quire.core.tracing import TraceListener
from quire.node.tracing.book import TraceBook
from quire.node.tracing.classes import ProgramClasses
from quire.node.tracing.fan_out import Listeners
from quire.node.tracing.otlp import make_export
from quire.node.tracing.parents import TraceParents
from quire.node.tracing.sending import SpanSender
from quire.node.tracing.spans import SpanMaker
from quire.node.tracing.unix_time import UnixTime


class TracingParts:
    """``listener`` receives what control reports. ``spans``: None without an OTLP endpoint.

    Raises:
        ConfigError: see ``make_export``.
    """

    def __init__(self, clock: ProgramClock, otlp_endpoint: str | None) -> None:
        self.unix = UnixTime(clock)
        self.parents = TraceParents()
        self.book = TraceBook()
        self.classes = ProgramClasses()
        self.spans: SpanSender | None = None
        listeners: list[TraceListener] = [self.book, self.classes]
        if otlp_endpoint is not None:
            maker = SpanMaker(self.parents, self.unix.offset_s, secrets.randbits)
            self.spans = SpanSender(maker, make_export(otlp_endpoint))
            listeners.append(self.spans)
        self.listener: TraceListener = Listeners(listeners)
