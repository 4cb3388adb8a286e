"""Passes what control reports to a listener on to several listeners."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.events import ProgramStarted
from quire.core.ids import ProgramId
from quire.core.tracing import CallRecord, MessageRecord, TraceListener, TransferRecord


class Listeners:
    """A ``TraceListener`` that passes everything on, in the order of ``listeners``."""

    def __init__(self, listeners: Sequence[TraceListener]) -> None:
        self._listeners = tuple(listeners)

    def program_started(self, started: ProgramStarted) -> None:
        for listener in self._listeners:
            listener.program_started(started)

    def program_ended(self, program: ProgramId, end_s: float, reason: str) -> None:
        for listener in self._listeners:
            listener.program_ended(program, end_s, reason)

    def call_ended(self, call: CallRecord) -> None:
        for listener in self._listeners:
            listener.call_ended(call)

    def message_ended(self, message: MessageRecord) -> None:
        for listener in self._listeners:
            listener.message_ended(message)

    def transfer_ended(self, transfer: TransferRecord) -> None:
        for listener in self._listeners:
            listener.transfer_ended(transfer)
