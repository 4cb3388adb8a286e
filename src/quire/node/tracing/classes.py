"""Waiting against service by class of program, as histograms.

The class of a session is its ``kind``, which the client chooses, else ``session``; that of a
launched program is its name. The first classes are counted apart and all later ones as ``other``: a
series, once begun, must go on. Owns the counts, on control's thread.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from quire.core.events import ProgramStarted
from quire.core.ids import ProgramId
from quire.core.tracing import CallRecord, MessageRecord, TransferRecord
from quire.node.latency import Histogram, HistogramSnapshot
from quire.node.tracing.reading import MIN_WAIT_S

MAX_CLASSES = 32
OTHER = "other"

_KEPT_ENDS = 1024
"""Programs whose class is known beyond their ends."""

WAITING_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
)  # fmt: skip
IDLE_BOUNDS_S = (
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
    1800.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """The ended calls of one class: how long each waited and was served, how long programs waited
    between calls, and the number of calls by outcome."""

    waiting: HistogramSnapshot
    service: HistogramSnapshot
    idle: HistogramSnapshot
    num_calls: Mapping[str, int]


class _Class:
    def __init__(self) -> None:
        self.waiting = Histogram(WAITING_BOUNDS_S)
        self.service = Histogram(WAITING_BOUNDS_S)
        self.idle = Histogram(IDLE_BOUNDS_S)
        self.num_calls: Counter[str] = Counter()


class ProgramClasses:
    """A ``TraceListener``; call ``snapshot`` on its thread too."""

    def __init__(self, max_classes: int = MAX_CLASSES) -> None:
        self._max_classes = max_classes
        self._classes: dict[str, _Class] = {}
        self._of: dict[ProgramId, _Class] = {}
        self._ended: OrderedDict[ProgramId, _Class] = OrderedDict()

    def snapshot(self) -> Mapping[str, ClassFigures]:
        return {
            name: ClassFigures(
                one.waiting.snapshot(),
                one.service.snapshot(),
                one.idle.snapshot(),
                dict(one.num_calls),
            )
            for name, one in self._classes.items()
        }

    def program_started(self, started: ProgramStarted) -> None:
        name = started.kind or ("session" if started.form == "session" else started.name)
        if name not in self._classes and len(self._classes) >= self._max_classes - 1:
            name = OTHER
        found = self._classes.get(name)
        if found is None:
            found = self._classes[name] = _Class()
        self._of[started.program] = found

    def program_ended(self, program: ProgramId, end_s: float, reason: str) -> None:
        """Keep the class of the program for a while: its calls in flight end after it."""
        found = self._of.pop(program, None)
        if found is not None:
            self._ended[program] = found
            if len(self._ended) > _KEPT_ENDS:
                self._ended.popitem(last=False)

    def call_ended(self, call: CallRecord) -> None:
        found = self._of.get(call.program) or self._ended.get(call.program)
        if found is None:
            return
        found.num_calls[call.outcome or ""] += 1
        found.waiting.observe(call.waiting_s)
        found.service.observe(call.service_s)
        if call.idle_since_s is not None and call.arrival_s - call.idle_since_s >= MIN_WAIT_S:
            found.idle.observe(call.arrival_s - call.idle_since_s)

    def message_ended(self, message: MessageRecord) -> None:
        """Do nothing: a message belongs to no program."""

    def transfer_ended(self, transfer: TransferRecord) -> None:
        """Do nothing: transfers are counted by engine."""
