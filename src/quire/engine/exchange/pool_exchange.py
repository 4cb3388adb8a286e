"""The ``Exchange`` of an engine whose pool can be read and written by token.

Owns the sends and receives of its engine between their operations and their ends. Its transport's
thread reads and writes the pool beside the engine's own: control leaves slots that are sent or
received alone until their ends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np

from quire.core.batch import CloseReceives, OpenReceive, SendSlots
from quire.core.batch_result import EngineReport
from quire.core.errors import InvalidArgument, QuireError
from quire.core.exchange import KEY_BYTES, ReceiveEnded, SendEnded
from quire.core.kv_transport import KVTransport, Sent
from quire.engine.exchange.pool_sink import PoolSink
from quire.engine.exchange.pool_source import PoolSource
from quire.engine.kv_cache.token_form import I64, TokenPool


class PoolExchange:
    """Implements ``Exchange``. Takes ``transport`` over. ``content``: ``EngineInfo.content``."""

    def __init__(self, pool: TokenPool, content: str, transport: KVTransport) -> None:
        self._pool = pool
        self._content = content
        self._transport = transport
        self._sinks: dict[int, PoolSink] = {}
        self._waiting: list[SendSlots] = []
        self._reports: deque[EngineReport] = deque()
        self._ring: Callable[[], None] = lambda: None

    @property
    def address(self) -> str:
        return self._transport.address

    def begin(self, operation: OpenReceive | CloseReceives | SendSlots) -> None:
        match operation:
            case OpenReceive():
                try:
                    self._open(operation)
                except QuireError as exc:
                    self._tell(ReceiveEnded(lease=operation.lease, error=exc.record()))
            case CloseReceives(leases=leases):
                for lease in leases:
                    self._close(lease)
            case SendSlots():
                self._waiting.append(operation)

    def message_ended(self) -> None:
        """K and V of the message's forward are written: its sends begin."""
        waiting, self._waiting = self._waiting, []
        for operation in waiting:
            self._send(operation)

    def take_report(self) -> EngineReport | None:
        if not self._reports:
            return None
        report = self._reports.popleft()
        if isinstance(report, ReceiveEnded):
            sink = self._sinks.get(report.lease)
            if sink is not None and sink.is_closed:  # else the lease could not be opened twice
                self._close(report.lease)
        return report

    def wake_by(self, ring: Callable[[], None]) -> None:
        self._ring = ring

    def close(self) -> None:
        for lease in list(self._sinks):
            self._close(lease)
        self._transport.close()

    def _open(self, operation: OpenReceive) -> None:
        lease, slots = operation.lease, _flat(operation.slots)
        if len(operation.key) != KEY_BYTES:
            raise InvalidArgument(f"the key of lease {lease} must have {KEY_BYTES} bytes")
        if lease in self._sinks:
            raise InvalidArgument(f"lease {lease} is open already")
        if not len(slots) or len(np.unique(slots)) != len(slots):
            raise InvalidArgument(f"lease {lease} names no slot, or names one twice")
        sink = PoolSink(self._pool, self._content, lease, slots, self._tell)
        self._sinks[lease] = sink
        self._transport.accept(lease, operation.key, sink)

    def _close(self, lease: int) -> None:
        sink = self._sinks.pop(lease, None)
        if sink is not None:
            sink.close()
            self._transport.refuse(lease)

    def _send(self, operation: SendSlots) -> None:
        began_s = time.perf_counter()

        def end(sent: Sent) -> None:
            self._tell(
                SendEnded(
                    send=operation.send,
                    error=None if sent.error is None else sent.error.record(),
                    num_bytes=sent.num_bytes,
                    elapsed_s=time.perf_counter() - began_s,
                )
            )

        slots, target = _flat(operation.slots), operation.target
        source = PoolSource(self._pool, self._content, slots, target.first)
        self._transport.send(target, source, end)

    def _tell(self, report: EngineReport) -> None:
        """From any thread."""
        self._reports.append(report)
        self._ring()


def _flat(slots: I64 | np.ndarray) -> I64:
    return np.asarray(slots, np.int64)
