"""Sends spans to a collector, from a thread of its own.

Control's thread only appends to a bounded queue: when that is full, records are dropped and
counted, so that a collector that is slow or dead delays nothing. Owns the queue, the thread and the
counts. ``spans`` makes the spans, ``otlp`` sends them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.core.events import ProgramStarted
from quire.core.ids import ProgramId
from quire.core.tracing import CallRecord, MessageRecord, TransferRecord
from quire.node.tracing.spans import ProgramEnd, Span, SpanMaker, Told

logger = logging.getLogger(__name__)

MAX_QUEUED = 16_384
MAX_BATCH = 512

_GATHER_S = 0.5
_CLOSE_S = 5.0

Export = Callable[[Sequence[Span]], bool]
"""Sends a batch; False if it was not accepted. May take long, and may raise."""


@dataclass(frozen=True, slots=True)
class SpanCounts:
    """``num_dropped``: records for which there was no room in the queue; ``num_failed``: spans that
    the collector did not take."""

    num_sent: int = 0
    num_dropped: int = 0
    num_failed: int = 0


class SpanSender:
    """A ``TraceListener``, called from one thread. ``start`` it once; ``close`` sends what is
    queued, within limits.

    ``gather_s``: spans of this length of time are sent together.
    """

    def __init__(
        self,
        maker: SpanMaker,
        export: Export,
        *,
        max_queued: int = MAX_QUEUED,
        gather_s: float = _GATHER_S,
    ) -> None:
        self._maker = maker
        self._export = export
        self._max_queued = max_queued
        self._gather_s = gather_s
        self._queue: deque[Told] = deque()
        self._num_sent = 0
        self._num_dropped = 0
        self._num_failed = 0
        self._is_failing = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="quire-spans", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def counts(self) -> SpanCounts:
        """The counts so far. For any thread."""
        return SpanCounts(self._num_sent, self._num_dropped, self._num_failed)

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Send what is queued, for at most ``timeout_s``; the rest is lost with the process."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # -- control tells it --------------------------------------------------------------------------

    def program_started(self, started: ProgramStarted) -> None:
        self._put(started)

    def program_ended(self, program: ProgramId, end_s: float, reason: str) -> None:
        self._put(ProgramEnd(program, end_s, reason))

    def call_ended(self, call: CallRecord) -> None:
        self._put(call)

    def transfer_ended(self, transfer: TransferRecord) -> None:
        self._put(transfer)

    def message_ended(self, message: MessageRecord) -> None:
        """Do nothing: messages are many and belong to no program, so they become no spans."""

    def _put(self, told: Told) -> None:
        if len(self._queue) >= self._max_queued:
            self._num_dropped += 1
            return
        self._queue.append(told)
        if not self._wake.is_set():
            self._wake.set()

    # -- its own thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wake.wait()
            self._closing.wait(self._gather_s)
            self._wake.clear()
            is_last = self._closing.is_set()
            self._drain()

    def _drain(self) -> None:
        batch: list[Span] = []
        while self._queue:
            batch += self._maker.spans(self._queue.popleft())
            if len(batch) >= MAX_BATCH:
                self._send(batch)
                batch = []
        if batch:
            self._send(batch)

    def _send(self, batch: Sequence[Span]) -> None:
        try:
            is_sent = self._export(batch)
        except Exception:
            if not self._is_failing:
                logger.exception("spans could not be sent")
            is_sent = False
        if is_sent:
            self._num_sent += len(batch)
        else:
            self._num_failed += len(batch)
        if is_sent == self._is_failing:  # once for each change, not for each batch
            self._is_failing = not is_sent
            logger.log(
                logging.INFO if is_sent else logging.WARNING,
                "the collector of spans takes them again"
                if is_sent
                else "the collector does not take spans: they are dropped, see quire_spans_total",
            )
