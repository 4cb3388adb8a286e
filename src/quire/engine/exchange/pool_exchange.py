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
from quire.core.errors import InvalidArgument, QuireError, TransferFailed
from quire.core.exchange import KEY_BYTES, ReceiveEnded, SendEnded
from quire.core.kv_transport import KVTransport, SendResult
from quire.engine.exchange.layer_progress import ForwardGate, LayerCounter
from quire.engine.exchange.pool_sink import PoolSink
from quire.engine.exchange.pool_source import PoolSource
from quire.engine.kv_cache.token_form import I64, TokenPlaces, TokenPool


class PoolExchange:
    """Implements ``Exchange``. Takes ``transport`` over. ``content``: ``EngineInfo.content``."""

    def __init__(
        self,
        pool: TokenPool,
        content: str,
        transport: KVTransport,
        counter: LayerCounter | None = None,
    ) -> None:
        """``counter``: None if a forward's K and V are sent when all of it has run."""
        self._counter = counter
        self._progress = None if counter is None else counter.new_progress()
        self._gate: ForwardGate | None = None
        self._gate_base = 0
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

    def forward_begins(self, planned: I64, written: I64) -> None:
        """Begin the sends that wait. Those of slots that the forward writes follow its layers; the
        others are ready. The send of a slot whose row is left out fails."""
        counter, progress = self._counter, self._progress
        if not self._waiting or counter is None or progress is None:
            return
        waiting, self._waiting = self._waiting, []
        left_out, base = np.setdiff1d(planned, written), self._gate_base
        gate = ForwardGate(progress, base, self._pool.form.num_layers)
        for operation in waiting:
            slots = _places(operation).device_slots
            if np.isin(slots, left_out).any():
                error = TransferFailed("what was to be sent could not be computed")
                self._tell(SendEnded(send=operation.send, error=error.record()))
            elif np.isin(slots, written).any():
                self._gate = gate
                self._send(operation, gate)
            else:
                self._send(operation)
        if self._gate is not None:
            self._gate_base = gate.next_base
            counter.watch(progress, base)

    def _open_gate(self, *, has_failed: bool = False) -> None:
        if self._gate is not None and self._counter is not None:
            self._gate.end(has_failed=has_failed)
            self._gate = None
            self._counter.watch(None, 0)

    def message_ended(self) -> None:
        """Begin the sends that still wait, as K and V of the message's forward are written."""
        self._open_gate()
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
        self._open_gate(has_failed=True)
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

    def _send(self, operation: SendSlots, gate: ForwardGate | None = None) -> None:
        began_s = time.perf_counter()

        def end(sent: SendResult) -> None:
            self._tell(
                SendEnded(
                    send=operation.send,
                    error=None if sent.error is None else sent.error.record(),
                    num_bytes=sent.num_bytes,
                    transport=sent.transport,
                    elapsed_s=time.perf_counter() - began_s,
                )
            )

        places, target = _places(operation), operation.target
        source = PoolSource(self._pool, self._content, places, target.first, gate)
        self._transport.send(target, source, end)

    def _tell(self, report: EngineReport) -> None:
        """Add a report, from any thread."""
        self._reports.append(report)
        self._ring()


def _flat(slots: I64 | np.ndarray) -> I64:
    return np.asarray(slots, np.int64)


def _places(operation: SendSlots) -> TokenPlaces:
    slots, host_slots = _flat(operation.slots), _flat(operation.host_slots)
    if not len(host_slots):
        return TokenPlaces.on_device(slots)
    on_host = slots < 0
    return TokenPlaces(np.where(on_host, host_slots, slots), on_host)
